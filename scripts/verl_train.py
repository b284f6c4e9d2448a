#!/usr/bin/env python3
# Built from src/programs/verl_train/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "pyyaml", "numpy", "torch>=2.6", "transformers>=5.5.3,<6", "pyarrow", "datasets",
# ]
# ///
"""Train with verl 0.9.1, with the settings, data and reward functions of ppo_train.py: check, run, export, or print.

From one command line (or the same YAML) it writes a job folder, OUTPUT_DIR/job:

    train.parquet, val.parquet   the prompts in verl's five columns, laid out as by data_loader.py --for verl
    verl_reward.py               the weighted sum of FILE.py:function*weight, as our trainers score
    verl_hooks.py                the reward manager that calls it, a replay buffer that ends the run when a rollout or a
                                 reward fails, and two estimators that verl lacks
    verl_environment.py          with --environment: the agent loop that plays conversations as ppo_train.py would; a
                                 YAML file selects it, and environment/ has the environment's own file
    job.json, settings.json      what these modules read; the settings and overrides of the run
    run.sh                       the command with its Hydra overrides, each with the setting that it comes from

Settings that verl cannot express are errors. It names those without effect there, keys that verl dropped or ignores,
with what to write instead, and overrides that would undo a setting or a guard.

Deliberately left out: Megatron, reward models, verl's own tools and asynchronous trainers (give their keys with
--override), and installing anything on the nodes of a cluster: each needs verl and its rollout engine.

    python scripts/verl_train.py --algorithm grpo --output_dir runs/g --print            # the command; needs no verl
    python scripts/verl_train.py --config my.yaml --hardware 8x80GB --check              # starts nothing
    python scripts/verl_train.py --from_trl trl_run.py --hardware 8x80GB --export port   # a GRPOTrainer's file, moved
    python scripts/verl_train.py --check --overrides mine.txt                            # KEY=VALUE a line, by hand
    python scripts/verl_train.py --config my.yaml --run
    python scripts/verl_train.py --config my.yaml --output_dir /shared/o --print         # for a Ray that runs already:
    ray job submit --address http://HEAD:8265 --working-dir /shared/o/job -- bash run.sh

Exit codes: 0 done, 1 a finding of --check, or the run failed, 2 bad input, 3 a reward function or an environment
failed, 128 + n stopped by signal n.
"""

# Contents
#       152-157  file text         Load texts from files beside their room, such as a page's style; a built script …
#       160-171  python source     Parses Python source in a process with threads
#       174-271  messages          Errors that a user can fix, each with an exit code; messages on stderr; the layout …
#       274-350  bundle            Paths of this bundle and of its embedded model, data and rewards; loading its …
#       353-575  dialect           Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and …
#       578-809  settings          Settings: dataclasses whose fields are flags and YAML keys, and the checks that …
#       812-856  processes         The processes of a run: lazy torch, device, threads, sums, distribution of rows, …
#      859-1275  user scripts      A user's Python script or notebook, read from its source
#     1278-1330  exit codes        Program exit: errors that a user can fix become a message and an exit code
#     1333-1570  data files        Open data files as text: decompress, decode, refuse files without data; parse CSV …
#     1573-1670  nested rows       Find rows inside other JSON: an object with a list of rows, columns instead of …
#     1673-1943  rows              Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their prompts
#     1946-2056  chat              Chat templates: their settings, rendering messages, and prompts that bypass a …
#     2059-2148  held out          Held-out prompts: split them off, and count or refuse those that also occur in …
#     2151-2216  prompts           Load training and held-out prompts as token ids
#     2219-2236  verl layout       verl's row layout: the ground truth in reward_model, all other columns in extra_info
#     2239-2337  verl keys         Keys of verl's configuration: all current ones, and what replaces those of older …
#     2340-2544  trl names         Names in the pinned TRL: configs with their defaults, arguments of trainers, names …
#     2547-2571  trl scripts       A script that trains with TRL: the calls of its trainers, and of the configs that …
#     2574-2648  extracts          Extract from a Python file what some of its names need
#     2651-2867  user code         What users' rewards get: texts, copies of the columns, and their own state of the …
#     2870-3107  reward forms      The forms that a reward function may have, and loading rewards from files
#     3110-3429  rewards           The reward of a run, a weighted sum of functions; async ones run in one event …
#     3432-3561  environments      Load and check environments: classes whose methods are tools for the model, or …
#     3564-3767  tool calls        Parse tool calls in model output, by the tokenizer's response template or one of …
#     3770-3890  tool runs         Run the calls of many conversations concurrently, each with a time limit; none can …
#     3893-4194  turn bridge       Compute the tokens between turns from the chat template, so that sampled ids are …
#     4197-4507  conversations     Play a policy's conversations with environments; each turn samples all open …
#     4510-4661  play setup        Set up and score conversations, for all programs that take --environment
#     4664-4696  whole models      Refuse what transformers would make a model of by guessing: missing weights, other …
#     4699-4773  adapters          LoRA adapters: where their base and tokenizer are, loading, merging, saving
#     4776-4784  models            The networks of a run: their precision, the frozen reference, prompts that they …
#     4787-4818  tokenizers        Tokenizers: loading and saving, the tokens that end a completion, the rows that …
#     4821-4824  loading           Load networks: attention, 4-bit weights, dropout, dtypes, generation settings, …
#     4827-4833  losses            The KL to the reference, policy and value losses, and how losses per token become …
#     4836-4906  idle settings     Settings without effect in a configuration: named at the start, with what would …
#     4909-4954  advantages        From scores to advantages: penalties and KL in the reward, the estimators; a new …
#     4957-5076  presets           The algorithms by name: which choices each one makes, and which choices contradict …
#     5079-5357  trainer settings  Settings that several trainers have, with their defaults: a trainer's Config adds …
#     5360-5445  own functions     Advantage estimators and policy losses of the user's own, `FILE.py:function`, in …
#     5448-5473  optimizer         The updates of a step: learning rates, gradients over the processes, clipping, …
#     5476-5483  output folder     The output folder: which run owns it, folders written whole or not at all, modes …
#     5486-5615  settings          Settings, hardware by name, and verl's names of estimators, losses and aggregations
#     5618-6079  from trl          The settings of a GRPOTrainer run as ours, and those without an equal; its file is …
#     6082-6262  data              Rows and a model's files as verl reads them
#     6265-6424  refusals          What verl cannot express, ignores or changes, and sizes that do not divide
#     6427-6792  rewards           Our modules that verl loads: rewards and their manager, a replay buffer, …
#     6795-7123  overrides         Our settings as verl's overrides, in Hydra's grammar
#     7126-7479  job folder        The folder of a job: data, rewards, an environment, settings; the copies of the …
#     7482-7809  checks            --check: all that can be verified before a run, of a job or of a file of …
#     7812-7971  launch            run.sh, and the run on this machine
#     7974-8185  export            --export: a job as four files that need neither this script nor its bundle
#     8188-8226  command           The command line

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
import difflib
import errno
import functools
import gc
import gzip
import hashlib
import importlib
import importlib.util
import inspect
import io
import itertools
import json
import logging
import math
import operator
import os
import queue
import random
import re
import runpy
import shlex
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import unicodedata
import urllib.error
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

# ----------------------------------------------------------------------- file text (src/parts/foundation/file_text.py)


def with_values(text: str, **values) -> str:
    """Replace `{name}` in a text by its value; `"{name}"` loses its quotes, which keep a Python template valid."""
    return re.sub(r'("?)\{(\w+)\}\1', lambda match: str(values.get(match[2], match[0])), text)


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


def check_trainer(config: BaseConfig) -> None:
    """Raise UserError for trainer settings that are out of range or exclude each other."""
    check_values(config, "model", "data", "output_dir", "prompt_column")
    need(config.adam_beta2 < 1, f"got adam_beta2 {config.adam_beta2}; expected 0 or more, below 1; try 0.999 or 0.95")
    around = config.mismatch_low <= 1 <= config.mismatch_high
    need(around, "got mismatch bounds that exclude 1; expected low <= 1 <= high")
    fixed = config.aggregation == "fixed_length"
    need(not fixed or config.norm_length, "got fixed_length without its --norm_length; try --norm_length 1024")
    need(config.lora_rank or not config.load_in_4bit, "got --load_in_4bit without adapters; try --lora_rank 16")
    got = "got --merge_lora with --load_in_4bit, which would merge rounded weights; expected one of them"
    rounded = config.merge_lora and config.load_in_4bit
    need(not rounded, f"{got}; try merging afterwards, as references/deployment.md shows")
    packed = config.load_in_4bit and config.rollout_engine == "vllm"
    need(not packed, "got --load_in_4bit with vllm, which cannot copy 4-bit weights; try --rollout_engine hf")
    idle = config.vllm_args and config.rollout_engine != "vllm"
    need(not idle, f"got --vllm_args with rollout_engine {config.rollout_engine}; try --rollout_engine vllm")
    unknown = set(config.report_to) - {"wandb", "tensorboard", "trackio"}
    need(not unknown, f"got report_to {', '.join(sorted(unknown))}; expected wandb, tensorboard or trackio")


# ----------------------------------------------------------------------- processes (src/parts/foundation/processes.py)

LOCKS = []  # open files; the system holds their locks until the run or the process ends


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


# ----------------------------------------------------------------- user scripts (src/parts/foundation/user_scripts.py)

MOST_NESTED = 6  # dictionaries made of each other that are followed, as the time grows exponentially
CHANGING = {"append", "extend", "insert", "pop", "remove", "setdefault", "update"}  # methods
NAMED = ast.Name | ast.Attribute
DEFS = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = DEFS | ast.Lambda
OTHER_CELL = re.compile(r"\s*%%(bash|sh|html|writefile|file|script|javascript|js|markdown|latex|svg|sql|R)\b", re.I)
MAGIC = re.compile(r"\s*(?:[\w,. ]+=\s*)?(?=[%!])|\s*(?=\?|[\w.]+\?)")  # of a line of a notebook, before its sign
ARITHMETIC = {ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub, ast.FloorDiv: operator.floordiv}


@dataclass(frozen=True)
class Argument:
    """A setting as the file writes it: an argument of a call, an item of a spread dictionary, or a statement."""

    name: str
    value: ast.expr
    start: int
    end: int
    form: str = "{name}={text}"  # how the file writes it
    is_statement: bool = False
    is_sure: bool = True  # no `if` or loop around the statement


def without_magics(cell: str) -> str:
    """A cell of a notebook as Python of the same length: lines that only its shell, magics and help know do nothing."""
    lines = cell.split("\n")
    if OTHER_CELL.match(cell):
        return "\n".join(("0#" + line[2:])[: len(line)] for line in lines)
    try:
        ast.parse(cell)
    except SyntaxError as error:
        number = min(error.lineno or 1, len(lines)) - 1
        if magic := MAGIC.match(lines[number]):
            goes_on, before = True, magic[0]
            while goes_on and number < len(lines):
                line = lines[number]
                lines[number] = (before + "0#" + line[len(before) + 2 :])[: len(line)]
                goes_on, before, number = line.endswith("\\"), re.match(r"\s*", before)[0], number + 1
            return without_magics("\n".join(lines))
    return cell


class PythonSource:
    """The calls of a file and what their arguments are; nothing of it is run.

    A name that is bound twice, or changed after it was bound, is no constant.

    Raises:
        UserError: the text is no Python, or no notebook.
    """

    def __init__(self, name: str, text: str):
        self.name, self.raw, self.notebook = name, text, None
        self.text, shown = text, text
        if name.endswith(".ipynb"):
            try:
                self.notebook = json.loads(text)
                self.cells = [c for c in self.notebook["cells"] if c["cell_type"] == "code"]
            except (ValueError, LookupError, TypeError) as error:
                got = f"got {name}, which is not a notebook ({error})"
                raise UserError(f"{got}; expected one; try it in Jupyter") from None
            sources = ["".join(cell["source"]) for cell in self.cells]
            self.text, shown = "\n".join(sources), "\n".join(map(without_magics, sources))
            self.starts = [*itertools.accumulate((len(s) + 1 for s in sources), initial=0)]
        self._lines = self.text.split("\n")
        self._offsets = [*itertools.accumulate((len(line) + 1 for line in self._lines), initial=0)]
        self.runnable = shown
        try:
            self.tree = ast.parse(shown)
        except (SyntaxError, ValueError) as error:
            where = self.place(self._offsets[(getattr(error, "lineno", None) or 1) - 1])
            got = f"{name}, {where}: got {error.args[0]}"
            expected = f"expected Python {sys.version_info[0]}.{sys.version_info[1]}"
            raise UserError(f"{got}; {expected}; try python -m py_compile first") from None
        self.nodes = [*ast.walk(self.tree)]
        self.reading: list[ast.expr] = []  # dictionaries whose items are being looked for

    def span(self, node) -> tuple[int, int]:
        """(Start, end) of a node in the text; ast gives a line from 1 and a column in bytes."""
        places = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        start, end = (
            self._offsets[line - 1] + len(self._lines[line - 1].encode()[:column].decode(errors="ignore"))
            for line, column in places
        )
        return start, end

    def start(self, node) -> int:
        return self.span(node)[0]

    def code(self, node) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def place(self, at: int | ast.AST) -> str:
        """`line 3`, or `cell 2, line 3`, of an offset or a node."""
        start, prefix, offset = 0, "", at if isinstance(at, int) else self.start(at)
        if self.notebook:
            number = max(i for i, start in enumerate(self.starts[:-1] or [0]) if start <= offset)
            start, prefix = self.starts[number], f"cell {number + 1}, "
        return f"{prefix}line {self.text.count(chr(10), start, offset) + 1}"

    @cached_property
    def imports(self) -> dict[str, tuple[str, str, ast.AST]]:
        """Name in the file -> (module, name there, statement)."""
        names = {}
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                names |= {x.asname or x.name.replace("*", f"{module}.*"): (module, x.name, node) for x in node.names}
            elif isinstance(node, ast.Import):
                names |= {(x.asname or x.name).partition(".")[0]: (x.name, "", node) for x in node.names}
        return names

    def name_of(self, call: ast.expr) -> str:
        """The name of what is called, as its module calls it."""
        function = call.func if isinstance(call, ast.Call) else call
        if isinstance(function, ast.Attribute):
            return function.attr
        name = getattr(function, "id", "")
        return self.imports.get(name, ("", name))[1] or name

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        calls = {}
        for node in self.nodes:
            if isinstance(node, ast.Call):
                calls.setdefault(self.name_of(node), []).append(node)
        return calls

    @cached_property
    def definitions(self) -> dict[str, ast.AST]:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        return {node.name: node for node in self.nodes if isinstance(node, kinds)}

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def changed(self) -> list[tuple[ast.AST, str]]:
        """(What changes an object by an item, an attribute or a method; the name that stands first in it)."""
        places = [target for target, _ in self.stores] + [x.func for name in CHANGING for x in self.calls.get(name, [])]
        return [(x, re.match(r"\w*", self.code(x))[0]) for x in places]

    def binder(self, name: str, place: ast.AST) -> ast.AST | None:
        """The statement, loop or function that binds a name where it is read; None if there is none."""
        inner = place
        while here := self.parents.get(inner):
            body = next((x for _, x in ast.iter_fields(here) if isinstance(x, list) and inner in x), [inner])
            for statement in reversed(body[: body.index(inner)]):
                if name in bindings(statement):
                    return statement
            if isinstance(here, ast.For | ast.While) and name in bindings(here):
                return here
            if isinstance(here, FUNCTIONS) and inner is not here.args:
                if any(name in bindings(x) for x in ast.iter_child_nodes(here)):
                    return here
            inner = here
        return None

    def rebound(self, node: ast.expr, old: ast.AST, new: ast.AST) -> list[str]:
        """Names in an expression that may stand for something else, or nothing, at a new place than at the old one."""
        first, last = sorted(x.lineno for x in (old, new))
        others = {name for x, name in self.changed if first < x.lineno < last}
        if not self.around(new, FUNCTIONS):  # what the module binds may not be there yet
            others |= {n for n in bindings(self.tree) if not self.binder(n, new)}

        def meaning(name: str, place: ast.AST) -> ast.AST | None:
            return self.origin(self.bound(name, place)) or self.binder(name, place)

        names = sorted({x.id for x in ast.walk(node) if isinstance(x, ast.Name)})
        return [n for n in names if n in others or meaning(n, old) is not meaning(n, new)]

    def bound(self, name: str, place: ast.AST) -> ast.expr | None:
        """The value of a name where it is read; None if it depends on what runs before."""
        binder = self.binder(name, place)
        if binder is None:
            return self.constants.get(name)
        if isinstance(binder, FUNCTIONS) and name in bindings(binder.args):
            return self.passed(binder, name)
        return assigned_to(binder, name)

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Names of the module that one assignment binds."""
        times = Counter(bindings(self.tree))
        outside = [x for x in self.nodes if isinstance(x, ast.Assign | ast.AnnAssign) and not self.around(x, FUNCTIONS)]
        pairs = [(name, assigned_to(x, name)) for x in outside for name in bindings(x)]
        return {name: value for name, value in pairs if value is not None and times[name] == 1}

    def bases(self, definition: ast.AST | None) -> list[str]:
        return [self.name_of(base) for base in getattr(definition, "bases", [])]

    def derived(self, base: str) -> list[str]:
        """A class's name and those of the classes of this file that are derived from it, also at second hand."""
        names = [base]
        for name, definition in self.definitions.items():
            names += [name] if name not in names and {*names} & {*self.bases(definition)} else []
        return names

    def fields(self, base: str) -> list[Argument]:
        """Fields of the classes of this file that are derived from one and used; flags may win over them."""
        used = {x.id for x in self.nodes if isinstance(x, ast.Name)}
        owners = [x for name, x in self.definitions.items() if base in self.bases(x) and name in used]
        fields = [x for owner in owners for x in owner.body if isinstance(x, ast.AnnAssign) and x.value]
        form = "{{name}}: {} = {{text}}"
        return [
            Argument(self.code(x.target), x.value, *self.span(x), form.format(self.code(x.annotation)), True, False)
            for x in fields
            if "{" not in self.code(x.annotation)
        ]

    def own(self, call: ast.Call) -> bool:
        """Whether a call names a function of this file, or a method of self."""
        owner = getattr(call.func, "value", None)
        return isinstance(call.func, ast.Name) or (isinstance(owner, ast.Name) and owner.id == "self")

    def passed(self, function: ast.AST, name: str) -> ast.expr | None:
        """The value of a parameter in the only call of a function of this file, or its default."""
        is_init = getattr(function, "name", "") == "__init__"
        maker = getattr(self.parents[function] if is_init else function, "name", "")
        calls = [call for call in self.calls.get(maker, []) if self.own(call)]
        if len(calls) != 1 or any(isinstance(x, ast.Starred) for x in calls[0].args):
            return None
        defaults, only = defaults_of(function.args), len(function.args.kwonlyargs)
        names = [*defaults][: len(defaults) - only]
        given = dict(zip(names[names[:1] == ["self"] :], calls[0].args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in calls[0].keywords}
        return given.get(name) or (None if None in given else defaults.get(name))

    def origin(self, node: ast.expr | None, whole: bool = False) -> ast.expr | None:
        """The expression that makes an object, through names, parameters, `self.name` and functions that return it.

        `whole`: not through a name whose object changes later.
        """
        for _ in range(8):
            made = node.value if isinstance(node, ast.NamedExpr) else None
            if isinstance(node, ast.Name) and not (whole and any(name == node.id for _, name in self.changed)):
                made = self.bound(node.id, node)
            elif isinstance(node, ast.Attribute) and not whole:
                targets = [x for x in self.nodes if isinstance(x, ast.Attribute) and not isinstance(x.ctx, ast.Load)]
                stored = [self.parents[x] for x in targets if ast.unparse(x) == ast.unparse(node)]
                made = getattr(stored[0], "value", None) if len(stored) == 1 else None
            elif isinstance(node, ast.Call) and self.own(node):
                maker = self.definitions.get(self.name_of(node), ast.Pass())
                returned = [x.value for x in ast.walk(maker) if isinstance(x, ast.Return) and x.value]
                made = returned[0] if len(returned) == 1 else None
            if made is None:
                return node
            node = made
        return node

    def around(self, node: ast.AST, kinds: type) -> ast.AST | None:
        while (node := self.parents.get(node)) and not isinstance(node, kinds):
            pass
        return node

    def is_object(self, node: ast.expr, made: ast.expr) -> bool:
        """Whether an expression is the object that another makes, or that a name of the same function stands for."""
        if isinstance(made, NAMED) and isinstance(node, NAMED):  # made at run time
            return self.code(node) == self.code(made) and self.around(node, DEFS) is self.around(made, DEFS)
        return self.origin(node) is made

    @cached_property
    def stores(self) -> list[tuple[ast.expr, str | None]]:
        """Attributes and items that are set or deleted, each with its name where the statement is `x.name = value`."""
        stores = []
        for node in [x for x in self.nodes if isinstance(x, ast.Attribute | ast.Subscript)]:
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node.slice, "value", None)
            is_alone = getattr(self.parents[node], "targets", None) == [node] and isinstance(node.ctx, ast.Store)
            if not isinstance(node.ctx, ast.Load):
                stores.append((node, name if is_alone and isinstance(name, str) else None))
        return stores

    def changes(self, made: ast.expr, use: ast.AST | None = None) -> list[Argument]:
        """`config.name = value`, `d["name"] = value`, `d.update(name=value)` on the object that an expression makes."""
        around = [*self.blocks(made), *(self.blocks(use) if use else [])]
        pairs = [(item, call) for call, items in self.updates(made).items() for item in items]
        arguments = [replace(item, is_sure=item.is_sure and self.is_sure(call, around)) for item, call in pairs]
        for target, name in self.stores:
            if name and self.is_object(target.value, made):
                statement, is_item = self.parents[target], isinstance(target, ast.Subscript)
                owner = self.code(target.value).replace("{", "{{").replace("}", "}}")
                form = owner + ('["{name}"] = {text}' if is_item else ".{name} = {text}")
                is_sure, place = self.is_sure(target, around), self.span(statement)
                arguments.append(Argument(name, statement.value, *place, form, is_statement=True, is_sure=is_sure))
        return sorted(arguments, key=lambda change: change.start)

    def updates(self, made: ast.expr) -> dict[ast.Call, list[Argument]]:
        """The items of each `d.update(…)` on the object that an expression makes, where all of them are seen."""
        calls = [x for x in self.calls.get("update", []) if isinstance(self.parents[x], ast.Expr)]
        calls = [x for x in calls if isinstance(x.func, ast.Attribute) and self.is_object(x.func.value, made)]
        pairs = zip(calls, map(self.items, calls), strict=True)
        return {call: items for call, (items, unseen) in pairs if not unseen}

    def is_sure(self, node: ast.AST, around: list[ast.AST]) -> bool:
        """Whether no branch or loop other than those given is around a node's statement."""
        block = self.parents[self.around(node, ast.stmt)]
        return isinstance(block, ast.Module | FUNCTIONS) or block in around

    def blocks(self, node: ast.AST) -> list[ast.AST]:
        return [node, *self.blocks(self.parents[node])] if node in self.parents else [node]

    def hidden_changes(self, made: ast.expr) -> list[ast.expr]:
        """`setattr(config, …)`, `vars(config).update(…)`, `config.x += 1`, `d[key] = …` on the object that is made."""
        objects = [(change, change.args[0]) for change in self.calls.get("setattr", []) if change.args]
        objects += [(change, change.func) for name in CHANGING for change in self.calls.get(name, [])]
        objects += [(target, target.value) for target, name in self.stores if not name]
        parts = [(change, part) for change, node in objects for part in ast.walk(node) if isinstance(part, NAMED)]
        seen, hidden = self.updates(made), dict.fromkeys(change for change, part in parts if self.is_object(part, made))
        return [change for change in hidden if change not in seen]

    def resolved(self, node):
        """What an expression stands for, where nothing changes it later."""
        return self.origin(node, whole=True)

    def value(self, node):
        """The literal of an expression or of sums and products of constants; ValueError for another thing."""
        node = self.resolved(node)
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right = self.value(node.left), self.value(node.right)
            if isinstance(left, int | float) and isinstance(right, int | float) and right:
                return ARITHMETIC[type(node.op)](left, right)
        return ast.literal_eval(node)

    def arguments(self, call: ast.Call) -> tuple[list[Argument], list[ast.expr]]:
        """(Arguments by keyword, those of a dictionary `**name` of this file too; what is spread and not seen)."""
        return self.spread(self.keywords(call))

    def keywords(self, call: ast.Call) -> list[tuple]:
        return [(keyword.arg, keyword.value, self.span(keyword)) for keyword in call.keywords]

    def spread(self, parts: list[tuple], form: str = Argument.form) -> tuple[list[Argument], list[ast.expr]]:
        """(Parts as arguments, with the items of those without a name; what is not seen)."""
        arguments, unseen = [], []
        for name, value, place in parts:
            inside, hidden = self.items(value) if name is None else ([Argument(name, value, *place, form)], [])
            arguments, unseen = arguments + inside, unseen + hidden
        return arguments, unseen

    def argument(self, call: ast.Call, name: str, places: tuple[str, ...] = ()) -> ast.expr | None:
        """What a call gives for a parameter, by keyword or by its place."""
        given = {argument.name: argument.value for argument in self.arguments(call)[0]}
        return given[name] if name in given else dict(zip(places, call.args, strict=False)).get(name)

    def items(self, node: ast.expr) -> tuple[list[Argument], list[ast.expr]]:
        """(Items of a dictionary, whatever it is made of or is set later; its unseen parts)."""
        made = self.origin(node)
        parts = self.parts(made) if made not in self.reading and len(self.reading) < MOST_NESTED else None
        if parts is None:
            return [], [node]
        self.reading.append(made)
        items, unseen = self.spread(parts, '"{name}": {text}' if isinstance(made, ast.Dict) else Argument.form)
        if isinstance(made, ast.IfExp):
            items = [replace(item, is_sure=False) for item in items]
        if node is not made:
            start, function = self.start(node), self.around(node, FUNCTIONS)
            end = self.span(function)[1] if function else len(self.text)  # what follows it may run before it is called
            changes = [x for x in self.changes(made, node) if not start <= x.start < end]
            items += [replace(x, is_sure=x.is_sure and x.start < start) for x in changes]
            unseen += self.hidden_changes(made)
        self.reading.remove(made)
        return items, unseen

    def parts(self, made: ast.expr) -> list[tuple] | None:
        """(Name, or None to spread it; value; place) of what a dictionary is made of; None if that cannot be seen."""
        name = self.name_of(made) if isinstance(made, ast.Call) else ""
        if name in ("dict", "copy", "deepcopy", "update"):
            is_method = name == "copy" and not made.args and isinstance(made.func, ast.Attribute)
            return [(None, x, ()) for x in ([made.func.value] if is_method else made.args)] + self.keywords(made)
        if isinstance(made, ast.BinOp) and isinstance(made.op, ast.BitOr):
            return [(None, made.left, ()), (None, made.right, ())]
        if isinstance(made, ast.IfExp):
            return [(None, made.body, ()), (None, made.orelse, ())]
        if isinstance(made, ast.Dict) and all(key is None or isinstance(key, ast.Constant) for key in made.keys):
            pairs = zip(made.keys, made.values, strict=True)
            return [(key and str(key.value), x, key and (self.start(key), self.span(x)[1])) for key, x in pairs]
        return None


@cache
def bindings(node: ast.AST) -> list[str]:
    """The names that a node binds, once for each binding, without those inside functions and classes."""
    names = names_bound_by(node)
    if not isinstance(node, FUNCTIONS | ast.ClassDef):
        names += [name for child in ast.iter_child_nodes(node) for name in bindings(child)]
    return names


def assigned_to(node: ast.AST, name: str) -> ast.expr | None:
    """The value of an assignment to a name alone, or of the only `(name := value)` in a statement or its condition."""
    first = getattr(node, "test", None) if hasattr(node, "body") else node
    named = [x.value for x in ast.walk(first or ast.Pass()) if isinstance(x, ast.NamedExpr) and x.target.id == name]
    if named and len(named) == bindings(node).count(name):
        return named[0]
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    is_plain = isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and target.id == name
    return node.value if is_plain else None


def names_bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.ImportFrom | ast.Import):
        return [(x.asname or x.name).partition(".")[0] for x in node.names]
    return [node.name] if isinstance(node, FUNCTIONS | ast.ClassDef) and not isinstance(node, ast.Lambda) else []


def defaults_of(arguments: ast.arguments) -> dict[str, ast.expr | None]:
    """{parameter: its default, None without one} of a function, in order, without * and **."""
    names = [x.arg for x in (*arguments.posonlyargs, *arguments.args)]
    values = [*[None] * (len(names) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    return dict(zip([*names, *(x.arg for x in arguments.kwonlyargs)], values, strict=True))


# --------------------------------------------------------------------- exit codes (src/parts/foundation/exit_codes.py)


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


def overlap_metric(rows: list[dict]) -> dict[str, int]:
    """{"eval/trained_rows": count} of evaluated rows that also train; {} if there are none."""
    count = sum(row.get("trains", False) for row in rows)
    return {"eval/trained_rows": count} if count else {}


# --------------------------------------------------------------------------------- prompts (src/parts/data/prompts.py)


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


def evaluated_rows(config: BaseConfig, rows: list) -> list:
    """Draw `eval_rows` held-out rows (0: all), in their order; every run draws the same ones, so that runs compare."""
    if not 0 < config.eval_rows < len(rows):
        return rows
    say(f"held-out: {config.eval_rows} of {len(rows)} rows, the same in every evaluation; --eval_rows 0 takes all")
    picked = np.random.default_rng(0).permutation(len(rows))[: config.eval_rows]
    return [rows[i] for i in sorted(picked.tolist())]


# ------------------------------------------------------------------------- verl layout (src/parts/data/verl_layout.py)

# keys in extra_info that are not columns of the data
OWN_INFO = ("index", "split", "ground_truth_field", "json_columns", "prompt_is_text", "absent_columns")


def ground_truth_of(row: dict) -> tuple[str | None, str, str]:
    """(column, extra_info.ground_truth_field, text) of a row's ground truth: its tests, else its answer, else none."""
    gold = next((name for name in ("tests", "answer") if row.get(name) is not None), None)
    truth = "" if gold is None else row[gold]
    if isinstance(truth, str):
        return gold, gold or "none", truth
    return gold, f"{gold}:json", json.dumps(truth, ensure_ascii=False)


def info_key(name: str) -> str:
    """A column's key in extra_info: prefixed with `column:` where it would clash with OWN_INFO."""
    return f"column:{name}" if name in OWN_INFO or name.startswith("column:") else name


# ----------------------------------------------------------------------------- verl keys (src/parts/data/verl_keys.py)

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
FSDP, CORRECTION = f"{ACTOR}.fsdp_config", "algorithm.rollout_correction"
OFF = 1e9  # a bound that no ratio reaches: verl, like us, bounds the log-ratio to +-20, and exp(20) is 4.9e8
NAMES_FILE = BUNDLE / "assets" / "verl_keys.txt"

# Key, or key=value, from older guides or by a plausible guess -> (what verl 0.9.1 does with it, what to write instead).
# If the replacement is a section, the old section's keys follow below it.
IGNORED, GONE = "ignores it", "no longer has it"
TODAY = {
    f"{ACTOR}.clip_ratio": (IGNORED, f"{ACTOR}.clip_ratio_low and {ACTOR}.clip_ratio_high"),
    f"{ACTOR}.grad_clip": (IGNORED, f"{ACTOR}.optim.clip_grad"),
    "critic.grad_clip": (IGNORED, "critic.optim.clip_grad"),
    f"{ACTOR}.use_torch_compile": (IGNORED, f"{FSDP}.use_torch_compile"),
    f"{FSDP}.dtype": (IGNORED, f"+{FSDP}.mixed_precision.param_dtype"),
    f"{REF}.fsdp_config.dtype": (IGNORED, f"+{REF}.fsdp_config.mixed_precision.param_dtype"),
    "critic.fsdp.dtype": (IGNORED, "+critic.fsdp.mixed_precision.param_dtype"),
    f"{REF}.fsdp_config.param_offload": (IGNORED, "leaving it out: the reference always waits in CPU memory"),
    "custom_reward_function": (IGNORED, "reward.custom_reward_function"),
    "reward_model.custom_reward_function": (GONE, "reward.custom_reward_function"),
    "custom_reward_function.overlong_buffer": (GONE, "+reward.reward_kwargs.overlong_buffer_cfg"),
    "reward_model.overlong_buffer": (GONE, "+reward.reward_kwargs.overlong_buffer_cfg"),
    **{f"{part}.megatron.grad_offload": (GONE, "leaving it out") for part in (ACTOR, REF, "critic")},
    f"{ACTOR}.use_token_level_loss=true": (GONE, f"{ACTOR}.loss_agg_mode=token-mean"),
    "reward_model": (IGNORED, "the section reward, whose model vLLM or SGLang serves"),
    "reward_model.reward_manager": (IGNORED, "reward.reward_manager.name"),
    "reward_model.enable": (IGNORED, "reward.reward_model.enable"),
    "reward_model.model.path": (IGNORED, "reward.reward_model.model_path"),
    "reward_model.num_workers": (IGNORED, "reward.num_workers"),
    **{
        f"reward_model.{name}": (IGNORED, f"reward.reward_model.{name}")
        for name in ("rollout", "enable_resource_pool", "n_gpus_per_node", "nnodes")
    },
    "reward_model.reward_kwargs": (GONE, "+reward.reward_kwargs"),
    "reward_model.use_reward_loop": (GONE, "leaving it out: it is always on"),
    "reward_model.launch_reward_fn_async": (GONE, "leaving it out: it is always on"),
    "sandbox_fusion": (IGNORED, "reward.sandbox_fusion"),
    "algorithm.filter_groups.max_num_gen_batches": (IGNORED, "algorithm.filter_groups.max_inflight_gen_batches"),
    f"{CORRECTION}.loss_type": (IGNORED, f"{ACTOR}.policy_loss.loss_mode"),
    f"{CORRECTION}.bypass_mode=true": (
        "leaves out the correction with it",
        "False, or trainer.use_v1=False, which corrects",
    ),
    "algorithm.policy_loss_fn": (GONE, f"{ACTOR}.policy_loss.loss_mode"),
    f"{ACTOR}.tis_imp_ratio_cap": (GONE, f"{CORRECTION}.rollout_is=token and {CORRECTION}.rollout_is_threshold"),
    "algorithm.rollout_is": (GONE, f"{CORRECTION}.rollout_is"),
    "data.chat_template": (GONE, f"{MODEL}.custom_chat_template, the template's text"),
    "data.sampler": (GONE, "data.shuffle=False, and a data set that orders its rows"),
    "data.datagen": (GONE, "a data set class of your own: data.custom_cls.path and name"),
    **dict.fromkeys(("data.return_raw_input_ids", "data.return_raw_chat"), (IGNORED, "leaving it out")),
    "data.reward_fn_key": (IGNORED, "the column data_source"),
    "data.truncation": (IGNORED, "data.filter_overlong_prompts=True"),
    f"{ROLLOUT}.multi_turn.max_turns": (GONE, f"{ROLLOUT}.multi_turn.max_assistant_turns"),
    f"{ROLLOUT}.multi_turn.interaction_config_path": (GONE, "an agent loop of your own"),
    f"{ROLLOUT}.multi_turn.enable": (IGNORED, f"{ROLLOUT}.agent.default_agent_loop=tool_agent"),
    f"{ROLLOUT}.multi_turn.completion_callback": (GONE, "an agent loop of your own"),
    f"{ROLLOUT}.skip": (GONE, "the section skip.rollout, whose steps are a list"),
    f"{ROLLOUT}.skip_rollout": (GONE, "the section skip.rollout, whose steps are a list"),
    f"{ROLLOUT}.skip_dump_dir": (GONE, "the section skip.rollout, whose steps are a list"),
    f"{ROLLOUT}.mode=sync": ("refuses it at the start", "leaving it out: all rollout is asynchronous"),
    f"{ROLLOUT}.name=hf": ("refuses it at the start", f"{ROLLOUT}.name=vllm"),
    f"{ROLLOUT}.name=sglang_async": ("refuses it at the start", f"{ROLLOUT}.name=sglang"),
    f"{ACTOR}.ppo_micro_batch_size": ("deprecates it", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    f"{ACTOR}.optim.warmup_style": ("deprecates it", f"{ACTOR}.optim.lr_scheduler_type"),
    f"{ACTOR}.ulysses_sequence_parallel_size": ("deprecates it", f"{FSDP}.ulysses_sequence_parallel_size"),
    "critic.model.fsdp_config": (GONE, "critic.fsdp"),
    "trainer.use_legacy_worker_impl": (GONE, "leaving it out: there is one engine"),
    "trainer.remove_previous_ckpt_in_save=true": (
        GONE,
        "trainer.max_actor_ckpt_to_keep=1 and trainer.max_critic_ckpt_to_keep=1",
    ),
    "trainer.balance_batch=false": (IGNORED, "leaving it out"),
    "trainer.esi_redundant_time": (IGNORED, "leaving it out"),
    "ray_init": (GONE, "ray_kwargs.ray_init"),
}


def known_names(engine: str) -> set[str]:
    """Every key of verl's configuration with a model engine; an empty set for an engine that is not in the file."""
    names, has_engine = set(), False
    for line in NAMES_FILE.read_text(encoding="utf-8").splitlines()[1:]:
        where, section, *leaves = line.split()
        has_engine = has_engine or where == engine
        if where in ("*", engine):
            names |= {f"{section}.{leaf}".lstrip(".") for leaf in leaves}
    return names if has_engine else set()


def advice_today(key: str, value: str) -> tuple[str, str] | None:
    """(what verl does with a key, what to write instead) by its longest match in TODAY; None if it has none."""
    value = value.strip().lower()
    for entry in sorted(TODAY, key=len, reverse=True):
        name, _, only = entry.partition("=")
        if (key == name or key.startswith(f"{name}.")) and only in ("", value):
            effect, instead = TODAY[entry]
            is_section = re.fullmatch(r"\+?[\w.]+", instead)
            return effect, instead + key.removeprefix(name) if is_section else instead
    return None


# ----------------------------------------------------------------------------- trl names (src/parts/data/trl_names.py)

TRL_NAMES = """\
{"defaults":{"TrainingArguments":{"output_dir":null, "per_device_train_batch_size":8, "num_train_epochs":3.0,
"max_steps":-1, "learning_rate":5e-05, "lr_scheduler_type":"linear", "lr_scheduler_kwargs":null, "warmup_steps":0,
"optim":"adamw_torch_fused", "optim_args":null, "weight_decay":0.0, "adam_beta1":0.9, "adam_beta2":0.999,
"adam_epsilon":1e-08, "optim_target_modules":null, "gradient_accumulation_steps":1,
"average_tokens_across_devices":true, "max_grad_norm":1.0, "label_smoothing_factor":0.0, "bf16":false, "fp16":false,
"bf16_full_eval":false, "fp16_full_eval":false, "tf32":null, "activation_checkpointing":null,
"activation_checkpointing_kwargs":null, "gradient_checkpointing":null, "gradient_checkpointing_kwargs":null,
"torch_compile":false, "torch_compile_backend":null, "torch_compile_mode":null, "use_liger_kernel":false,
"liger_kernel_config":null, "use_cache":false, "neftune_noise_alpha":null, "torch_empty_cache_steps":null,
"auto_find_batch_size":false, "logging_strategy":"steps", "logging_steps":500, "logging_first_step":false,
"log_on_each_node":true, "logging_nan_inf_filter":true, "include_num_input_tokens_seen":"no", "log_level":"passive",
"log_level_replica":"warning", "disable_tqdm":null, "report_to":"none", "run_name":null, "project":"huggingface",
"trackio_space_id":null, "trackio_bucket_id":null, "trackio_static_space_id":null, "eval_strategy":"no",
"eval_steps":null, "eval_delay":0, "per_device_eval_batch_size":8, "prediction_loss_only":false, "eval_on_start":false,
"eval_do_concat_batches":true, "eval_use_gather_object":false, "eval_accumulation_steps":null, "include_for_metrics":[],
"batch_eval_metrics":false, "save_only_model":false, "save_strategy":"steps", "save_steps":500,
"save_on_each_node":false, "save_total_limit":null, "enable_jit_checkpoint":false, "push_to_hub":false,
"hub_token":null, "hub_private_repo":null, "hub_model_id":null, "hub_strategy":"every_save", "hub_always_push":false,
"hub_revision":null, "load_best_model_at_end":false, "metric_for_best_model":null, "greater_is_better":null,
"ignore_data_skip":false, "restore_callback_states_from_checkpoint":false, "full_determinism":false, "seed":42,
"data_seed":null, "use_cpu":false, "accelerator_config":null, "parallelism_config":null, "dataloader_drop_last":false,
"dataloader_num_workers":0, "dataloader_pin_memory":true, "dataloader_persistent_workers":false,
"dataloader_prefetch_factor":null, "dataloader_multiprocessing_context":null, "dataloader_in_order":true,
"remove_unused_columns":true, "label_names":null, "train_sampling_strategy":"random", "length_column_name":"length",
"ddp_find_unused_parameters":null, "ddp_bucket_cap_mb":null, "ddp_broadcast_buffers":null, "ddp_static_graph":null,
"ddp_backend":null, "ddp_timeout":1800, "fsdp":null, "fsdp_config":null, "deepspeed":null, "debug":"",
"skip_memory_metrics":true, "do_train":false, "do_eval":false, "do_predict":false, "resume_from_checkpoint":null,
"local_rank":-1}, "GRPOConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06,
"model_init_kwargs":null, "trust_remote_code":false, "router_aux_loss_coef":null, "disable_dropout":false,
"cast_lm_head_to_fp32":false, "remove_unused_columns":false, "num_generations":8, "num_generations_eval":null,
"max_completion_length":512, "ds3_gather_for_generation":true, "shuffle_dataset":true, "pad_to_multiple_of":"auto",
"generation_batch_size":null, "steps_per_generation":null, "temperature":1.0, "top_p":1.0, "top_k":0, "min_p":null,
"generation_kwargs":null, "chat_template_kwargs":null, "repetition_penalty":1.0, "cache_implementation":null,
"use_vllm":false, "vllm_mode":"colocate", "vllm_model_impl":"vllm", "vllm_enable_sleep_mode":false,
"vllm_structured_outputs_regex":null, "vllm_server_base_url":null, "vllm_server_host":"0.0.0.0",
"vllm_server_port":8000, "vllm_server_timeout":240.0, "vllm_group_port":51216, "vllm_gpu_memory_utilization":0.3,
"vllm_max_model_length":null, "vllm_tensor_parallel_size":1, "beta":0.0, "num_iterations":1, "epsilon":0.2,
"delta":null, "epsilon_high":null, "sapo_temperature_neg":1.05, "sapo_temperature_pos":1.0, "vespo_k_pos":2.0,
"vespo_lambda_pos":3.0, "vespo_k_neg":3.0, "vespo_lambda_neg":2.0, "importance_sampling_level":"token",
"reward_weights":null, "multi_objective_aggregation":"sum_then_normalize", "scale_rewards":"group", "loss_type":"dapo",
"mask_truncated_completions":false, "sync_ref_model":false, "ref_model_mixup_alpha":0.6, "ref_model_sync_steps":512,
"top_entropy_quantile":1.0, "entropy_coef":0.0, "use_adaptive_entropy":false, "entropy_coef_min":0.0,
"entropy_coef_max":1.0, "entropy_coef_delta":0.005, "entropy_target":0.2, "max_tool_calling_iterations":null,
"vllm_importance_sampling_correction":true, "vllm_importance_sampling_mode":"sequence_mask",
"vllm_importance_sampling_clip_max":3.0, "vllm_importance_sampling_clip_min":null, "off_policy_mask_threshold":null,
"use_bias_correction_kl":true, "log_completions":false, "log_multimodal":true, "num_completions_to_print":null,
"log_unique_prompts":false, "log_completions_hub_repo":null, "use_transformers_continuous_batching":false,
"transformers_continuous_batching_config":null, "use_transformers_paged":false, "vllm_importance_sampling_cap":null},
"RLOOConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06,
"model_init_kwargs":null, "trust_remote_code":false, "router_aux_loss_coef":null, "disable_dropout":false,
"remove_unused_columns":false, "num_generations":2, "num_generations_eval":null, "max_completion_length":512,
"ds3_gather_for_generation":true, "shuffle_dataset":true, "pad_to_multiple_of":"auto", "generation_batch_size":null,
"steps_per_generation":null, "temperature":1.0, "top_p":1.0, "top_k":0, "min_p":null, "generation_kwargs":null,
"chat_template_kwargs":null, "repetition_penalty":1.0, "cache_implementation":null, "use_vllm":false,
"vllm_mode":"colocate", "vllm_model_impl":"vllm", "vllm_enable_sleep_mode":false, "vllm_structured_outputs_regex":null,
"vllm_server_base_url":null, "vllm_server_host":"0.0.0.0", "vllm_server_port":8000, "vllm_server_timeout":240.0,
"vllm_group_port":51216, "vllm_gpu_memory_utilization":0.3, "vllm_max_model_length":null, "vllm_tensor_parallel_size":1,
"beta":0.05, "num_iterations":1, "epsilon":0.2, "epsilon_high":null, "reward_weights":null,
"normalize_advantages":false, "reward_clip_range":null, "mask_truncated_completions":false, "sync_ref_model":false,
"ref_model_mixup_alpha":0.6, "ref_model_sync_steps":512, "log_completions":false, "log_multimodal":true,
"num_completions_to_print":null, "log_unique_prompts":false, "use_transformers_continuous_batching":false,
"transformers_continuous_batching_config":null, "use_transformers_paged":false}, "SFTConfig":{"logging_steps":10,
"gradient_checkpointing":true, "bf16":null, "learning_rate":2e-05, "model_init_kwargs":null, "trust_remote_code":false,
"router_aux_loss_coef":null, "chat_template_path":null, "dataset_text_field":"text", "dataset_kwargs":null,
"dataset_num_proc":null, "eos_token":null, "max_length":1024, "truncation_mode":"keep_start", "shuffle_dataset":false,
"packing":false, "packing_strategy":"bfd", "padding_free":false, "pad_to_multiple_of":"auto", "eval_packing":null,
"completion_only_loss":null, "assistant_only_loss":false, "loss_type":"nll", "activation_offloading":false,
"pad_token":null}, "DPOConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06,
"model_init_kwargs":null, "trust_remote_code":false, "router_aux_loss_coef":null, "disable_dropout":true,
"dataset_num_proc":null, "max_length":1024, "truncation_mode":"keep_start", "padding_free":false,
"pad_to_multiple_of":"auto", "precompute_ref_log_probs":false, "precompute_ref_batch_size":null,
"loss_type":["sigmoid"], "loss_weights":null, "ld_alpha":null, "f_divergence_type":"reverse_kl",
"f_alpha_divergence_coef":0.5, "label_smoothing":0.0, "beta":0.1, "use_weighting":false, "discopop_tau":0.05,
"activation_offloading":false, "sync_ref_model":false, "ref_model_mixup_alpha":0.6, "ref_model_sync_steps":512,
"pad_token":null}, "RewardConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null,
"learning_rate":0.0001, "model_init_kwargs":null, "trust_remote_code":false, "chat_template_path":null,
"disable_dropout":true, "dataset_num_proc":null, "eos_token":null, "max_length":1024, "pad_to_multiple_of":"auto",
"center_rewards_coefficient":null, "activation_offloading":false, "pad_token":null}, "GKDConfig":{"logging_steps":10,
"gradient_checkpointing":true, "bf16":null, "learning_rate":2e-05, "model_init_kwargs":null, "trust_remote_code":false,
"router_aux_loss_coef":null, "chat_template_path":null, "dataset_text_field":"text", "dataset_kwargs":null,
"dataset_num_proc":null, "eos_token":null, "max_length":1024, "truncation_mode":"keep_start", "shuffle_dataset":false,
"packing":false, "packing_strategy":"bfd", "padding_free":false, "pad_to_multiple_of":"auto", "eval_packing":null,
"completion_only_loss":null, "assistant_only_loss":false, "loss_type":"nll", "activation_offloading":false,
"pad_token":null, "temperature":0.9, "lmbda":0.5, "beta":0.5, "max_new_tokens":128, "teacher_model_name_or_path":null,
"teacher_model_init_kwargs":null, "disable_dropout":true, "seq_kd":false}, "DistillationConfig":{"logging_steps":10,
"gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06, "model_init_kwargs":null, "trust_remote_code":false,
"teacher_model_name_or_path":null, "teacher_model_revision":null, "teacher_model_init_kwargs":null,
"disable_dropout":false, "remove_unused_columns":false, "max_completion_length":512, "ds3_gather_for_generation":true,
"shuffle_dataset":true, "pad_to_multiple_of":"auto", "temperature":1.0, "top_p":1.0, "top_k":0, "min_p":null,
"generation_kwargs":null, "chat_template_kwargs":null, "repetition_penalty":1.0, "cache_implementation":null,
"use_vllm":false, "vllm_mode":"colocate", "vllm_model_impl":"vllm", "vllm_enable_sleep_mode":false,
"vllm_structured_outputs_regex":null, "vllm_server_base_url":null, "vllm_server_host":"0.0.0.0",
"vllm_server_port":8000, "vllm_server_timeout":240.0, "vllm_group_port":51216, "vllm_gpu_memory_utilization":0.3,
"vllm_max_model_length":null, "vllm_tensor_parallel_size":1, "beta":1.0, "max_tool_calling_iterations":null,
"log_completions":false, "num_completions_to_print":null, "log_unique_prompts":false},
"OnlineDPOConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null, "learning_rate":5e-07,
"remove_unused_columns":false, "reward_model_path":null, "max_new_tokens":64, "max_length":512, "temperature":0.9,
"top_p":1.0, "top_k":0, "min_p":null, "repetition_penalty":1.0, "generation_kwargs":null, "cache_implementation":null,
"missing_eos_penalty":null, "beta":[0.1], "loss_type":"sigmoid", "disable_dropout":true, "use_vllm":false,
"vllm_model_impl":"vllm", "vllm_structured_outputs_regex":null, "vllm_gpu_memory_utilization":0.55,
"vllm_mode":"colocate", "vllm_server_base_url":null, "vllm_server_host":"0.0.0.0", "vllm_server_port":8000,
"vllm_server_timeout":240.0, "vllm_group_port":51216, "vllm_tensor_parallel_size":1, "vllm_enable_sleep_mode":false,
"ds3_gather_for_generation":true, "model_init_kwargs":null, "trust_remote_code":false, "reward_weights":null},
"KTOConfig":{"logging_steps":10, "gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06,
"train_sampling_strategy":"sequential", "model_init_kwargs":null, "trust_remote_code":false,
"router_aux_loss_coef":null, "disable_dropout":true, "dataset_num_proc":null, "max_length":1024,
"pad_to_multiple_of":"auto", "precompute_ref_log_probs":false, "precompute_ref_batch_size":null, "loss_type":"kto",
"beta":0.1, "desirable_weight":1.0, "undesirable_weight":1.0, "activation_offloading":false, "sync_ref_model":false,
"ref_model_mixup_alpha":0.6, "ref_model_sync_steps":512}, "ORPOConfig":{"logging_steps":10,
"gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06, "max_length":1024, "max_completion_length":null,
"beta":0.1, "disable_dropout":true, "padding_value":null, "generate_during_eval":false, "is_encoder_decoder":null,
"model_init_kwargs":null, "trust_remote_code":false, "dataset_num_proc":null}, "CPOConfig":{"logging_steps":10,
"gradient_checkpointing":true, "bf16":null, "learning_rate":1e-06, "max_length":1024, "max_completion_length":null,
"beta":0.1, "label_smoothing":0.0, "loss_type":"sigmoid", "disable_dropout":true, "cpo_alpha":1.0, "simpo_gamma":0.5,
"alpha":0.0, "generate_during_eval":false, "is_encoder_decoder":null, "model_init_kwargs":null,
"trust_remote_code":false, "dataset_num_proc":null}, "ModelConfig":{"model_name_or_path":null, "model_revision":"main",
"dtype":"float32", "attn_implementation":null, "use_peft":false, "lora_r":16, "lora_alpha":32, "lora_dropout":0.05,
"lora_target_modules":null, "lora_target_parameters":null, "lora_modules_to_save":null, "lora_task_type":"CAUSAL_LM",
"use_rslora":false, "use_dora":false, "load_in_8bit":false, "load_in_4bit":false, "bnb_4bit_quant_type":"nf4",
"use_bnb_nested_quant":false, "bnb_4bit_quant_storage":null}}, "trainers":{"GRPOTrainer":["model", "reward_funcs",
"args", "train_dataset", "eval_dataset", "processing_class", "reward_processing_classes", "callbacks", "optimizers",
"quantization_config", "peft_config", "tools", "rollout_func", "environment_factory"], "RLOOTrainer":["model",
"reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "reward_processing_classes", "callbacks",
"optimizers", "quantization_config", "peft_config"], "SFTTrainer":["model", "args", "data_collator", "train_dataset",
"eval_dataset", "processing_class", "compute_loss_func", "compute_metrics", "callbacks", "optimizers",
"optimizer_cls_and_kwargs", "preprocess_logits_for_metrics", "quantization_config", "peft_config", "formatting_func"],
"DPOTrainer":["model", "ref_model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class",
"compute_metrics", "callbacks", "optimizers", "quantization_config", "peft_config"], "RewardTrainer":["model", "args",
"data_collator", "train_dataset", "eval_dataset", "processing_class", "compute_metrics", "callbacks", "optimizers",
"optimizer_cls_and_kwargs", "preprocess_logits_for_metrics", "quantization_config", "peft_config"],
"GKDTrainer":["model", "teacher_model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class",
"compute_metrics", "callbacks", "optimizers", "preprocess_logits_for_metrics", "peft_config", "formatting_func"],
"DistillationTrainer":["model", "teacher_model", "args", "train_dataset", "eval_dataset", "processing_class",
"callbacks", "optimizers", "quantization_config", "peft_config", "tools"], "OnlineDPOTrainer":["model", "ref_model",
"reward_funcs", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class",
"reward_processing_classes", "peft_config", "compute_metrics", "callbacks", "optimizers",
"preprocess_logits_for_metrics"], "KTOTrainer":["model", "ref_model", "args", "data_collator", "train_dataset",
"eval_dataset", "processing_class", "compute_metrics", "callbacks", "optimizers", "quantization_config", "peft_config"],
"ORPOTrainer":["model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class", "model_init",
"callbacks", "optimizers", "preprocess_logits_for_metrics", "peft_config", "compute_metrics"], "CPOTrainer":["model",
"args", "data_collator", "train_dataset", "eval_dataset", "processing_class", "model_init", "callbacks", "optimizers",
"preprocess_logits_for_metrics", "peft_config", "compute_metrics"]},
"modules":{"trl.chat_template_utils":["ProcessingClassT", "add_response_schema", "clone_chat_template",
"get_training_chat_template", "has_generation_markers", "is_chat_template_prefix_preserving",
"is_chat_template_stop_token_trained", "parse_response", "supports_tool_calling"], "trl.data_utils":["DatasetType",
"IterableDatasetType", "apply_chat_template", "common_prefix_length", "extract_prompt", "get_dataset_column_names",
"is_conversational", "is_conversational_from_value", "maybe_apply_chat_template", "maybe_convert_to_chatml",
"maybe_extract_prompt", "maybe_unpair_preference_dataset", "pack_dataset", "prepare_multimodal_messages",
"unpair_preference_dataset"], "trl.distributed":["DistributedBackend"], "trl.extras.profiling":["ProfilingContext",
"profiling_context", "profiling_decorator"], "trl.import_utils":["LIGER_KERNEL_MIN_VERSION",
"PACKAGE_DISTRIBUTION_MAPPING", "TRLExperimentalWarning", "is_aiohttp_available", "is_deepspeed_available",
"is_harbor_available", "is_jmespath_available", "is_liger_kernel_available", "is_math_verify_available",
"is_mergekit_available", "is_openreward_available", "is_requests_available", "is_unsloth_available",
"is_vllm_available", "is_weave_available", "suppress_experimental_warning", "suppress_warning"],
"trl.models.activation_offloading":["DTensor", "NoOpManager", "OffloadActivations", "get_act_offloading_ctx_manager"],
"trl.models.selective_activation_checkpointing":["enable_selective_activation_checkpointing"],
"trl.models.utils":["add_hooks", "create_reference_model", "disable_gradient_checkpointing", "get_all_parameters",
"iter_params", "prepare_deepspeed", "prepare_fsdp", "remove_hooks", "unwrap_model_for_generation"],
"trl.rewards.accuracy_rewards":["accuracy_reward", "get_cosine_scaled_reward", "reasoning_accuracy_reward"],
"trl.rewards.format_rewards":["think_format_reward"], "trl.rewards.other_rewards":["get_repetition_penalty_reward",
"get_soft_overlong_punishment"], "trl.scripts.distillation":["main", "make_parser"], "trl.scripts.dpo":["main",
"make_parser"], "trl.scripts.env":["print_env"], "trl.scripts.grpo":["GRPOScriptArguments", "main", "make_parser"],
"trl.scripts.kto":["main", "make_parser"], "trl.scripts.reward":["main", "make_parser"],
"trl.scripts.rloo":["RLOOScriptArguments", "main", "make_parser"], "trl.scripts.sft":["main", "make_parser"],
"trl.scripts.utils":["DatasetConfig", "DatasetMixtureConfig", "ScriptArguments", "TrlParser", "get_dataset",
"get_git_commit_hash", "init_zero_verbose"], "trl.scripts.vllm_serve":["ScriptArguments", "build_command", "main",
"make_parser"], "trl.trainer.base_config":[], "trl.trainer.base_trainer":[], "trl.trainer.callbacks":["BEMACallback",
"LogCompletionsCallback", "RichProgressCallback", "SyncRefModelCallback", "WeaveCallback"],
"trl.trainer.distillation_config":["DistillationConfig"], "trl.trainer.distillation_trainer":["DistillationTrainer"],
"trl.trainer.dpo_config":["DPOConfig"], "trl.trainer.dpo_trainer":["DPOTrainer", "DataCollatorForPreference",
"DataCollatorForVisionPreference"], "trl.trainer.grpo_config":["GRPOConfig"],
"trl.trainer.grpo_trainer":["EnvironmentFactory", "GRPOTrainer", "RewardFunc", "RolloutFunc"],
"trl.trainer.kto_config":["KTOConfig"], "trl.trainer.kto_trainer":["DataCollatorForUnpairedPreference",
"DataCollatorForVisionUnpairedPreference", "KTOTrainer"], "trl.trainer.model_config":["ModelConfig"],
"trl.trainer.reward_config":["RewardConfig"], "trl.trainer.reward_trainer":["DataCollatorForPreference",
"RewardTrainer", "suppress_seqcls_warning"], "trl.trainer.rloo_config":["RLOOConfig"],
"trl.trainer.rloo_trainer":["RLOOTrainer", "RewardFunc"], "trl.trainer.sft_config":["SFTConfig"],
"trl.trainer.sft_trainer":["DataCollatorForLanguageModeling", "DataCollatorForVisionLanguageModeling", "SFTTrainer"],
"trl.trainer.utils":["FusedCausalLMOutput", "RepeatSampler", "TListOrMapping", "add_fused_lm_head", "adjusted_mfu",
"compute_flops_per_token", "compute_mfu", "create_model_from_path", "disable_dropout_in_model",
"ensure_master_addr_port", "entropy_from_logits", "flush_left", "generate_model_card", "get_callable_name",
"get_comet_experiment_url", "get_config_model_id", "get_peak_flops", "get_peak_flops_per_device", "get_peft_config",
"get_quantization_config", "get_trackio_space_url", "global_then_local_main_first", "hash_module", "identity",
"is_async_callable", "log_table_to_comet_experiment", "maybe_gather_lm_head_ctx", "nanmax", "nanmin", "nanstd", "pad",
"print_prompt_completions_sample", "remove_none_values", "repeat_iterable_dataset", "selective_log_softmax",
"selective_log_softmax_and_entropy", "shuffle_sequence_dict", "shutdown_event_loop_in_daemon",
"split_pixel_values_by_grid", "split_tensor_dict", "start_event_loop_in_daemon", "strip_images_from_messages",
"unsplit_pixel_values_by_grid", "use_adapter"], "trl.experimental":["a2po", "async_distillation", "async_grpo",
"bema_for_ref_model", "cpo", "distillation", "gkd", "gmpo", "gold", "harbor", "iw_opd", "kto", "merge_model_callback",
"online_dpo", "openreward", "orpo", "sdft", "sdpo", "server_distillation", "tpo", "utils"]}}
"""


@functools.cache
def trl_today(kind: str) -> dict:
    """The table `defaults` by config, `trainers` or `modules`."""
    return json.loads(TRL_NAMES)[kind]


def trl_defaults(config: str) -> dict:
    """{setting: default} of a TRL config, including the settings of transformers' TrainingArguments."""
    return trl_today("defaults")["TrainingArguments"] | trl_today("defaults").get(config, {})


# ------------------------------------------------------------------------- trl scripts (src/parts/data/trl_scripts.py)

METHODS = "GRPO RLOO SFT DPO Reward KTO GKD Distillation OnlineDPO ORPO CPO PPO PPOv2".split()
CONFIGS = {f"{method}Trainer": f"{method}Config" for method in METHODS}


def trainer_names(source: PythonSource) -> dict[str, str]:
    """{name of a trainer of TRL, or of a class of the script that is derived from one: that trainer}."""
    return {name: trainer for trainer in CONFIGS for name in source.derived(trainer)}


def class_names(source: PythonSource, call: ast.Call | None) -> list[str]:
    """Names of the classes that a call may be of, through a variable for one or for one of two."""
    origin = source.origin(call and call.func)
    return [*map(source.name_of, [origin.body, origin.orelse] if isinstance(origin, ast.IfExp) else [origin])]


def trainer_calls(source: PythonSource) -> list[tuple[str, ast.Call]]:
    """(TRL trainer, call) for calls of trainers, of the script's subclasses and of variables for one, in file order."""
    names = trainer_names(source)
    calls = [(trainer, call) for name, trainer in names.items() for call in source.calls.get(name, [])]
    variables = {*source.calls} - {*names, *source.imports, *source.definitions, *vars(builtins)}
    for call in [x for name in variables for x in source.calls[name] if isinstance(x.func, ast.Name)]:
        calls += [(names[name], call) for name in class_names(source, call) if name in names][:1]
    return sorted(calls, key=lambda pair: source.start(pair[1]))


# ---------------------------------------------------------------------------- extracts (src/parts/rewards/extracts.py)

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bound_names(statement: ast.AST) -> set[str]:
    """The names that a top-level statement binds in its module; of a module, those that it binds anywhere."""
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


def read_names(*nodes: ast.AST) -> set[str]:
    """All names that occur in pieces of source."""
    return {leaf.id for node in nodes for leaf in ast.walk(node) if isinstance(leaf, ast.Name)}


def statements_of(source: str) -> list[tuple[ast.stmt, str]]:
    """(Statement, its text with the comments right above it) at the top level of Python source."""
    lines, pieces = source.splitlines(), []
    for statement in ast.parse(source).body:
        decorators = [node.lineno for node in getattr(statement, "decorator_list", [])]
        first = min([statement.lineno, *decorators]) - 1
        while first and lines[first - 1].startswith("#"):
            first -= 1
        pieces.append((statement, "\n".join(lines[first : statement.end_lineno]) + "\n"))
    return pieces


def needed(pieces: list[tuple[ast.stmt, str]], names: list[str]) -> set[int]:
    """Indices of the statements that bind the names or what these use in turn; `import *` may bind any name."""
    wanted, visited, kept = [*names, "*"], set(), set()
    while wanted:
        name = wanted.pop()
        if name in visited:
            continue
        visited.add(name)
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
    """Reduce Python source to the top-level statements that bind the names, or that these use, in their order.

    Statements that bind nothing are left out, such as calls and the block of `if __name__ == "__main__":`.
    """
    pieces = statements_of(source)
    kept, chosen = needed(pieces, names), []
    for place, (statement, lines) in enumerate(pieces):
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        docstring = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if place in kept or future or docstring:
            chosen.append((statement, f"{lines}\n" if docstring else lines))
    return joined(chosen)


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


def trial_texts(gold: str) -> list[str]:
    """Right and wrong completions in many formats, to compare two versions of a reward on."""
    right = [gold, f"#### {gold}", f"so it is \\boxed{{{gold}}}", f"<answer>{gold}</answer>", f"first\n{gold}"]
    return [*right, f"The answer is {gold}.", f"{gold} or not", "41", "", "nothing"]


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


def play_metrics(conversations: list) -> dict[str, float]:
    """Metrics for the run's log: means over conversations, and the share of tool calls that failed."""
    n, calls = len(conversations), sum(c.calls for c in conversations)
    return {
        "rollout/turns_mean": sum(len(c.spans) for c in conversations) / n,
        "rollout/limit_frac": sum(c.ended_by in ("turns", "tokens") for c in conversations) / n,
        "tool/calls_mean": calls / n,
        "tool/failure_frac": sum(c.failures for c in conversations) / max(1, calls),
        "tool/seconds": sum(c.seconds for c in conversations) / n,
    }


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


# --------------------------------------------------------------------------- adapters (src/parts/networks/adapters.py)


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


# ------------------------------------------------------------------------------- models (src/parts/networks/models.py)


def precision_on(precision: str, device) -> str:
    """Resolve a precision for a device: auto is bf16 on CUDA GPUs that support it, else fp32."""
    if precision != "auto":
        return precision
    able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if able else "fp32"


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


def ending_ids(ends: int | list[int] | None, tokenizer) -> list[int]:
    """Sorted ids of the tokens that end an answer: a model's eos_token_id (one or a list) and the tokenizer's."""
    return sorted({*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None})


# ----------------------------------------------------------------------------- loading (src/parts/networks/loading.py)

# attention kinds of transformers; auto leaves the choice to it: sdpa if the architecture supports it
ATTENTION_KINDS = ("auto", "eager", "sdpa", *(f"flash_attention_{i}" for i in (2, 3, 4)), "flex_attention")


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


# ----------------------------------------------------------------------- advantages (src/parts/learning/advantages.py)


def overlong_penalty(length: int, limit: int, share: float) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13): 0 to 1 over the last `share` of `limit` tokens."""
    buffer = round(share * limit)
    return max(0.0, (length - (limit - buffer)) / buffer) if buffer else 0.0


def group_stats(x, groups):
    """Mean, squared deviation and size of each entry's group; x and groups are [B], each result too.

    A group of equal entries has exactly its entry as mean and 0 as deviation, whatever rounding says.
    """
    _, index, count = torch.unique(groups, return_inverse=True, return_counts=True)
    zeros = torch.zeros(len(count), dtype=x.dtype, device=x.device)
    mean = (zeros.index_add(0, index, x) / count)[index]
    low, high = (zeros.scatter_reduce(0, index, x, reduce=r, include_self=False)[index] for r in ("amin", "amax"))
    mean = torch.where(low == high, x, mean)
    return mean, zeros.index_add(0, index, (x - mean) ** 2)[index], count[index]


def with_singles(advantages, scores, count, alone: float):
    """Advantages [B], but `alone` times the score for a completion without others in its group."""
    return torch.where(count > 1, advantages, alone * scores)


def mean_advantages(scores, groups, alone: float = 0.0, **_):
    """R - mean_g: Dr. GRPO (Liu 2025, arXiv 2503.20783, section 3.2); also tinker, prime-rl, nanochat."""
    mean, _, count = group_stats(scores, groups)
    return with_singles(scores - mean, scores, count, alone)


def gpg_advantages(scores, groups, alone: float = 0.0, **_):
    """alpha (R - mean_g), alpha = B / completions in groups of unequal score: GPG (Chu 2025, arXiv 2504.02546)."""
    _, square, _ = group_stats(scores, groups)
    alpha = len(scores) / (square > 0).sum().clamp(min=1)
    return alpha * mean_advantages(scores, groups, alone)


def maxrl_advantages(scores, groups, **_):
    """(R - mean_g) / (mean_g + 1e-6): MaxRL (arXiv 2602.02710), for scores that are 0 or more."""
    if (scores < 0).any():
        raise RewardError(f"got a score of {scores.min():g}; expected 0 or more for maxrl; try --algorithm grpo")
    mean, _, _ = group_stats(scores, groups)
    return (scores - mean) / (mean + 1e-6)


# ----------------------------------------------------------------------------- presets (src/parts/learning/presets.py)

# What the algorithms without a critic share, and what each has of its own. references/rl_algorithms.md says where each
# figure comes from; group_size (papers: 4 to 64) and minibatches (papers: up to 16) are ours, for a batch of 128.
GROUP_DEFAULTS = {
    "group_size": 8,
    "advantage": "grpo",
    "loss": "clip",
    "aggregation": "token_mean",
    "ppo_epochs": 1,
    "minibatches": 1,
    "dynamic_sampling": False,
    "kl_coef": 0.0,
    "kl_in": "loss",
    "kl_estimator": "k3",
    "missing_eos_penalty": 0.0,
    "overlong_share": 0.0,
    "clip_eps_low": 0.2,
    "clip_eps_high": 0.2,
    "dual_clip": 0.0,
}
REWARD_KL = {"kl_in": "reward", "kl_estimator": "k1"}
ALONE = {"group_size": 1, "kl_coef": 0.01, **REWARD_KL}
OF_SEQUENCES = {"aggregation": "seq_mean_token_mean", "minibatches": 4}
PRESETS = {
    "ppo": {**ALONE, "advantage": "gae", "ppo_epochs": 2, "dual_clip": 3.0},
    "grpo": {"aggregation": "seq_mean_token_mean"},  # without KL, as TRL; the paper has kl_coef 0.04
    "dr_grpo": {"advantage": "mean", "aggregation": "seq_mean_token_sum_norm"},
    "dapo": {"clip_eps_high": 0.28, "dynamic_sampling": True, "overlong_share": 0.2, "minibatches": 4},
    "rloo": {"advantage": "rloo", "aggregation": "seq_mean_token_sum", "kl_coef": 0.05, **REWARD_KL},
    "reinforce_pp": {**ALONE, "advantage": "reinforce_pp"},
    "reinforce_pp_baseline": {"advantage": "reinforce_pp_baseline", "kl_estimator": "k2", "kl_coef": 0.001},
    "remax": {**ALONE, "advantage": "remax", "aggregation": "seq_mean_token_sum"},
    "opo": {"advantage": "opo"},
    "gpg": {"advantage": "gpg", "loss": "reinforce"},
    "maxrl": {"advantage": "maxrl"},
    "gdpo": {"advantage": "gdpo"},
    "gspo": {**OF_SEQUENCES, "loss": "gspo", "clip_eps_low": 3e-4, "clip_eps_high": 4e-4},
    "cispo": {"loss": "cispo", "clip_eps_low": 1.0, "clip_eps_high": 4.0, "minibatches": 4},
    "sapo": {**OF_SEQUENCES, "loss": "sapo"},
    "gmpo": {**OF_SEQUENCES, "loss": "gmpo", "clip_eps_low": 0.4, "clip_eps_high": 0.4},
    "dppo_tv": {"loss": "dppo_tv", "dual_clip": 20.0, "clip_eps_low": 0.15, "clip_eps_high": 0.15, "minibatches": 4},
    "dppo_kl": {"loss": "dppo_kl", "dual_clip": 20.0, "clip_eps_low": 0.05, "clip_eps_high": 0.05, "minibatches": 4},
    "clip_cov": {"loss": "clip_cov", "minibatches": 4},
    "kl_cov": {"loss": "kl_cov", "minibatches": 4},
}
CLIPPED = {"clip", "gspo", "cispo", "gmpo", "dppo_tv", "dppo_kl", "clip_cov"}
READ_BY = {  # settings that only some values of a choice read
    **dict.fromkeys(("critic", "critic_model", "critic_lr", "critic_warmup_steps"), ("advantage", {"gae"})),
    **dict.fromkeys(("gae_lambda", "whiten_rewards", "whiten_advantages"), ("advantage", {"gae"})),
    **dict.fromkeys(("value_clip", "vf_coef"), ("advantage", {"gae"})),
    **dict.fromkeys(("advantage_std", "advantage_eps"), ("advantage", {"grpo", "gdpo"})),
    "gamma": ("advantage", {"gae", "reinforce_pp"}),
    **dict.fromkeys(("clip_eps_low", "clip_eps_high"), ("loss", CLIPPED)),
    **dict.fromkeys(("sapo_tau_pos", "sapo_tau_neg"), ("loss", {"sapo"})),
    **dict.fromkeys(("cov_low", "cov_high"), ("loss", {"clip_cov"})),
    "cov_frac": ("loss", {"clip_cov", "kl_cov"}),
    "kl_cov_coef": ("loss", {"kl_cov"}),
    "dual_clip": ("loss", {"clip", "dppo_tv", "dppo_kl"}),
    "norm_length": ("aggregation", {"fixed_length"}),
    **dict.fromkeys(("max_refills", "max_oversampling"), ("dynamic_sampling", {True})),
}
GROUPED = {"grpo", "mean", "rloo", "reinforce_pp_baseline", "opo", "gpg", "gpg_verl", "maxrl", "gdpo"}  # need a group


def is_own(name) -> bool:
    """Whether a choice names a function of the user's own, FILE.py:function."""
    return ".py:" in str(name)


def check_algorithm(config: BaseConfig) -> None:
    """Raise UserError for choices of the algorithm that contradict each other or would do nothing."""
    c, grouped = config, config.advantage in GROUPED
    got = f"got advantage {c.advantage} with group_size {c.group_size}; expected several completions per prompt"
    need(c.group_size > 1 or not grouped, f"{got}, whose mean is the baseline; try --group_size 8")
    dynamic = f"got --dynamic_sampling with {c.advantage}; expected a group estimator; try --algorithm dapo"
    need(grouped or not c.dynamic_sampling, dynamic)
    need(c.kl_coef or not c.kl_target, "got --kl_target with kl_coef 0, which it cannot adapt; try --kl_coef 0.05")
    got = f"got kl_horizon {c.kl_horizon} with batch_size {c.batch_size}; expected more, as both count completions"
    need(c.kl_horizon > c.batch_size or not c.kl_target, f"{got}; try --kl_horizon {100 * c.batch_size}")
    in_reward = c.kl_in == "reward"
    need(in_reward or not c.kl_target, "got --kl_target with the KL in the loss; expected it in the reward")
    ratio_weighted = c.kl_estimator == "k3_ratio" and in_reward
    need(not ratio_weighted, "got kl_estimator k3_ratio in the reward; expected k1, which is exact, or --kl_in loss")
    gdpo = c.advantage == "gdpo" and in_reward and c.kl_coef
    need(not gdpo, "got advantage gdpo with the KL in the reward, which it would not see; try --kl_in loss")
    below = c.missing_eos_penalty or c.overlong_share or (c.kl_coef and in_reward)
    need(c.advantage != "maxrl" or not below, "got maxrl with a penalty or KL in the reward; expected neither")
    need(c.max_oversampling >= 1, f"got max_oversampling {c.max_oversampling}; expected 1 or more; try 2")
    need(c.overlong_share <= 1, f"got overlong_share {c.overlong_share}; expected 0 to 1")
    need(c.dual_clip == 0 or c.dual_clip > 1, f"got dual_clip {c.dual_clip}; expected 0 (off) or more than 1; try 3")
    got = f"got cov_frac {c.cov_frac}, cov_low {c.cov_low}, cov_high {c.cov_high}"
    need(c.cov_frac <= 1 and c.cov_low <= c.cov_high, f"{got}; expected cov_frac <= 1 and cov_low <= cov_high")
    usual = type(config)(algorithm=c.algorithm)
    for name, (choice, values) in READ_BY.items():
        unread = getattr(c, choice) not in values and not is_own(getattr(c, choice))
        idle = unread and getattr(c, name) != getattr(usual, name)
        readers = f"expected {choice} {' or '.join(sorted(map(str, values)))}, where it acts; try without --{name}"
        need(not idle, f"got {name} {getattr(c, name)} with {choice} {getattr(c, choice)}; {readers}")
    if c.kl_coef and c.kl_in == "loss" and c.kl_estimator == "k1":
        say("warning: k1 in the loss has no gradient in expectation; try --kl_estimator k3_ratio, or --kl_in reward")


def check_config(config: BaseConfig, world: int = 1) -> None:
    """Raise UserError for settings that cannot work together."""
    check_trainer(config)
    need(max(config.gamma, config.gae_lambda) <= 1, "got gamma or gae_lambda above 1; expected 0 to 1; try --gamma 1")
    check_algorithm(config)
    if (warmup := config.critic_warmup_steps) >= config.steps:
        say(
            f"warning: got critic_warmup_steps {warmup} with steps {config.steps}: the policy does not train; try fewer"
        )
    say_idle(config, config.ppo_epochs * config.minibatches, PRESETS[config.algorithm])
    part = math.lcm(config.minibatches * world, config.group_size)
    need(
        config.batch_size % part == 0,
        f"got batch_size {config.batch_size}, group_size {config.group_size}, minibatches {config.minibatches}, "
        f"processes {world}; expected a batch_size, counted in completions, that is a multiple of {part}; "
        f"try --batch_size {math.ceil(config.batch_size / part) * part}",
    )


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


@in_order(steps="seed", entropy_coef="check_sync", load_in_4bit="lora_alpha")
@dataclass
class TrainerSettings(RunSettings):
    """What trainers by RL and distillation have, TRL's too."""

    # rollout
    steps: int = setting(
        100, "training steps; each is one rollout and one update", positive=True, free=True, section="rollout"
    )
    # algorithm: details of advantages and losses
    entropy_coef: float = setting(0.0, "weight of the entropy bonus")
    # precision and memory
    load_in_4bit: bool = setting(False, "4-bit base weights under LoRA (needs bitsandbytes)")
    # logs and checkpoints
    report_to: list[str] = setting(
        [], "wandb, tensorboard or trackio, repeatable, beside metrics.jsonl", free=True, section="logs and checkpoints"
    )
    metrics_file: str = setting("", "a second log: one JSON object per update, none for evaluations", free=True)
    metric_names: str = setting(
        "", "metrics of --metrics_file, under your names: reward=reward/mean,policy_loss=policy/loss", free=True
    )
    sample_every: int = setting(10, "steps between entries in samples.jsonl (0: never)", free=True)
    plot_every: int = setting(25, "steps between refreshes of curves.png (0: only at the end)", free=True)
    eval_every: int = setting(25, "steps between held-out evaluations (0: only before and after)", free=True)
    hold_out: int = setting(0, "rows of --data to hold out for evaluation, instead of --eval_data; whole prompts")
    eval_rows: int = setting(512, "held-out prompts in each evaluation, always the same ones (0: all)")
    allow_overlap: bool = setting(False, "evaluate even if every held-out prompt is also trained on", free=True)
    stop_when: str = setting(
        "never",
        "broken: save and stop if diagnose.py calls the run broken at step 3, 10, 30 …",
        ["never", "broken"],
        free=True,
    )


@in_order(
    max_prompt_tokens="steps",
    rollout_engine="temperature",
    norm_length="check_sync",
    mismatch="entropy_coef",
    adam_beta2="weight_decay",
    max_bad_updates="max_grad_norm",
    device="precision",
    micro_batch_tokens="attn_implementation",
    merge_lora="lora_alpha",
    save_every="stop_when",
)
@dataclass
class RolloutSettings(TrainerSettings):
    """What trainers with this bundle's step have."""

    # rollout
    max_prompt_tokens: int = setting(512, "longer prompts are left out, and counted", positive=True)
    max_new_tokens: int = setting(256, "longest completion", positive=True)
    rollout_engine: str = setting("hf", "engine that samples", ["hf", "vllm"])
    rollout_batch_size: int = setting(0, "sequences sampled at once per process", free=True, auto=True)
    decode_graphs: bool = setting(
        True, "on a CUDA GPU hf records the kernels of a token as a CUDA graph and replays them", free=True
    )
    vllm_memory: float = setting(0.3, "share of GPU memory that vLLM may take", free=True)
    # algorithm: choices
    norm_length: int = setting(0, "constant by which aggregation fixed_length divides a sequence's sum, in tokens")
    # algorithm: sampler and trainer that disagree
    mismatch: str = setting(
        "auto",
        "loss weights w = trainer/sampler probability; tis: per token, at most mismatch_high; icepop: per token, 0 "
        "outside the bounds; seq_mask: per sequence, 0 outside; auto: tis with vllm, else none",
        ["auto", "none", "tis", "icepop", "seq_mask"],
    )
    mismatch_low: float = setting(0.5, "lower bound of w")
    mismatch_high: float = setting(2.0, "upper bound of w", positive=True)
    # optimization
    lr: float = setting(
        0.0, "policy learning rate (0: 2e-4 below 50M parameters, 1e-5 with LoRA, else 1e-6)", section="optimization"
    )
    lr_schedule: str = setting("constant", "shape after warm-up, down to 0", ["constant", "linear", "cosine"])
    adam_beta2: float = setting(0.999, "AdamW: decay of the mean of squared gradients")
    adam_eps: float = setting(
        1e-8, "AdamW: added to the root of that mean; matters if gradients are tiny", positive=True
    )
    max_bad_updates: int = setting(5, "stop after this many non-finite updates in a row", positive=True, free=True)
    # precision and memory
    device: str = setting("auto", "auto (a CUDA GPU, else the CPU), cpu, cuda, cuda:N, or mps (untested)", free=True)
    micro_batch_tokens: int = setting(
        8192,
        "tokens per forward and backward pass, pads included; with share_prompts: tokens run + 1/8 of rows x columns",
        positive=True,
        free=True,
        auto=True,
    )
    share_prompts: bool = setting(
        True, "save time: run a group's prompt once and no padding; hf also stores the prompt once", free=True
    )
    logits_chunk: int = setting(
        2**26, "logits (tokens x vocabulary) that exist at once", positive=True, free=True, auto=True
    )
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass", free=True)
    merge_lora: bool = setting(False, "merge the adapters into final/", free=True)
    save_dtype: str = setting(
        "checkpoint", "dtype of final/: --model's (bf16 loses small changes) or fp32", ["checkpoint", "fp32"], free=True
    )
    # logs and checkpoints
    save_every: int = setting(25, "steps between checkpoints (0: only when stopped)", free=True)
    keep_checkpoints: int = setting(2, "newest checkpoints to keep", positive=True, free=True)


@in_order(
    environment="reward_retries",
    batch_size="steps",
    algorithm="check_sync",
    ppo_epochs="norm_length",
    target_kl="entropy_coef",
    critic="mismatch_high",
    critic_lr="lr",
)
@dataclass
class PolicySettings(RolloutSettings, ConversationSettings):
    """What the PPO trainer and the launcher of verl have.

    A field left at None takes the value that PRESETS gives it for `algorithm`.
    """

    # model and data
    turn_baseline: str = setting(
        "conversation",
        "group estimators compare whole conversations, or each turn with the others of its group that reached it",
        ["conversation", "turn"],
    )
    # rollout
    batch_size: int = setting(128, "completions per step, over all processes: prompts x group_size", positive=True)
    # algorithm: choices
    algorithm: str = setting(
        "ppo", "preset for those of the settings below that you do not set", lambda: list(PRESETS), section="algorithm"
    )
    group_size: int = setting(None, "completions per prompt", positive=True)
    ppo_epochs: int = setting(None, "passes over each batch", positive=True)
    minibatches: int = setting(None, "optimizer steps per pass; must divide batch_size", positive=True)
    # algorithm: divergence from the reference
    kl_coef: float = setting(
        None,
        "weight of the per-token KL to the reference; 0 loads no reference",
        section="divergence from the reference",
    )
    kl_in: str = setting(None, "where the KL goes", ["reward", "loss"])
    kl_estimator: str = setting(
        None,
        "exact: k3_ratio in the loss, k1 in the reward; for the others see references/rl_algorithms.md",
        ["k1", "k2", "k3", "k3_ratio"],
    )
    kl_target: float = setting(0.0, "adapt kl_coef to this KL in nats per completion (0: fixed; KL in the reward)")
    kl_horizon: int = setting(10_000, "completions, not steps, over which kl_coef adapts", positive=True)
    # algorithm: scores
    missing_eos_penalty: float = setting(
        None, "subtracted from the score of a completion without end token", section="scores"
    )
    overlong_share: float = setting(None, "soft overlong punishment, 0 to 1 over this last share of max_new_tokens")
    mask_truncated: bool = setting(False, "truncated completions contribute no gradient; their scores count")
    dynamic_sampling: bool = setting(None, "replace groups of equal score by newly sampled ones")
    max_refills: int = setting(3, "rounds of replacement per step; then groups of equal score fill the batch")
    max_oversampling: float = setting(
        1.0, "most groups sampled per missing group; how many depends on the share kept recently"
    )
    # algorithm: details of advantages and losses
    advantage_std: str = setting(
        "unbiased",
        "a group's deviation (grpo, gdpo): by n - 1 or n",
        ["unbiased", "biased"],
        section="advantages and losses",
    )
    advantage_eps: float = setting(1e-6, "added to a group's deviation (grpo, gdpo); 1e-6 as in verl, TRL has 1e-4")
    gamma: float = setting(1.0, "discount (gae, reinforce_pp)")
    gae_lambda: float = setting(0.95, "GAE lambda")
    whiten_rewards: bool = setting(False, "gae: divide per-token rewards by their standard deviation")
    whiten_advantages: bool = setting(True, "gae: give advantages mean 0 and variance 1")
    clip_eps_low: float = setting(None, "the ratio is clipped below at 1 - this; gmpo: log-ratio, dppo: divergence")
    clip_eps_high: float = setting(None, "the ratio is clipped above at 1 + this; gmpo: log-ratio, dppo: divergence")
    dual_clip: float = setting(None, "bound on the ratio if the advantage is negative; dppo: always (0: off)")
    sapo_tau_pos: float = setting(1.0, "sapo: steepness of the gate for positive advantages", positive=True)
    sapo_tau_neg: float = setting(1.05, "sapo: steepness of the gate for other advantages", positive=True)
    cov_frac: float = setting(2e-4, "clip_cov, kl_cov: share of tokens that the loss treats")
    cov_low: float = setting(1.0, "clip_cov: least covariance of a treated token")
    cov_high: float = setting(5.0, "clip_cov: largest covariance of a treated token")
    kl_cov_coef: float = setting(1.0, "kl_cov: weight of a treated token's |log-ratio|")
    target_kl: float = setting(0.0, "end the update when KL(old || new) per token exceeds this (0: off)")
    # critic, for advantage gae
    critic: str = setting(
        "separate",
        "separate backbone, or a value head on the policy's",
        ["separate", "shared"],
        section="critic, for advantage gae",
    )
    critic_model: str = setting("", "backbone of a separate critic (default: --model)")
    critic_warmup_steps: int = setting(0, "first steps that update the critic only")
    value_clip: float = setting(0.2, "bound on a value's change from its old value (0: off)")
    vf_coef: float = setting(0.5, "weight of the value loss")
    # optimization
    critic_lr: float = setting(0.0, "critic learning rate (0: 1e-3 below 50M parameters, else 1e-5)")

    def __post_init__(self):
        need(self.algorithm in PRESETS, f"got algorithm {self.algorithm!r}; expected one of {', '.join(PRESETS)}")
        for name, value in (GROUP_DEFAULTS | PRESETS[self.algorithm]).items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        self.chat = self.chat or bool(self.environment)  # a conversation begins with a user's turn


# ----------------------------------------------------------------- own functions (src/parts/learning/own_functions.py)

KNOWN = {  # what such a function may take by name
    "advantage": ("scores", "groups", "rewards", "mask", "config"),
    "loss": ("logprobs", "old_logprobs", "advantages", "mask", "config"),
}


class NamesOrFiles(list):
    """The names of a choice, beside which any `FILE.py:function` is one."""

    def __contains__(self, name) -> bool:
        return super().__contains__(name) or is_own(name)


class OwnFunction:
    """A user's function, called with those of the arguments that it names; its result is checked at each call.

    `spec` names it in messages.
    kind `advantage`: (scores [B], groups [B], rewards [B, T], mask [B, T], config) -> advantages [B] or [B, T].
    kind `loss`: (logprobs, old_logprobs, advantages, mask, all [B, T], config) -> loss [B, T] of each token, or that
    and [B, T] with 1 where a bound changed it.

    Raises:
        UserError: it needs what there is not, it raises, or its result has another shape, or a
        gradient where it should have none, or none where it should have one, or advantages are not finite. A loss that
        is not is left to the trainer, which leaves such updates out and counts them.
    """

    def __init__(self, kind: str, spec: str, function):
        self.kind, self.spec, self.function, known = kind, spec, function, KNOWN[kind]
        parameters = inspect.signature(self.function).parameters.values()
        unnamed = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
        need(not unnamed, f"got {kind} {spec!r}, which takes {', '.join(unnamed)} by position; try it without the /")
        lacking = [p.name for p in parameters if p.default is p.empty and p.name not in known and p.kind in (0, 1, 3)]
        takes = f"expected parameters among {', '.join(known)}"
        need(not lacking, f"got {kind} {spec!r}, which needs {', '.join(lacking)}; {takes}")
        whole = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.names = [name for name in known if whole or name in {p.name for p in parameters}]

    def __call__(self, **known):
        """The result of the function, which gets copies: what it changes in place is read again afterwards."""
        copies = {
            name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in known.items() if name in self.names
        }
        try:
            result = self.function(**copies)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            code = getattr(inspect.unwrap(self.function), "__code__", None)
            frame = ([f for f in frames if code and f.filename == code.co_filename] or frames)[-1]
            file = "the cell" if "ipykernel_" in frame.filename else Path(frame.filename).name
            where = f"{file}, line {frame.lineno}"
            raise UserError(f"{self.kind} {self.spec} raises {type(error).__name__}: {error} ({where})") from error
        return self.checked_loss(result, known) if self.kind == "loss" else self.checked_advantages(result, known)

    def checked(self, result, shapes: list):
        """The tensor, if it has one of the shapes."""
        kind, shown = f"{self.kind} {self.spec}", " or ".join(str(list(shape)) for shape in shapes)
        need(isinstance(result, torch.Tensor), f"got {type(result).__name__} from {kind}; expected a tensor {shown}")
        need(result.shape in shapes, f"got a tensor {list(result.shape)} from {kind}; expected {shown}")
        return result

    def checked_advantages(self, result, known: dict):
        result = self.checked(result, [known["scores"].shape, known["mask"].shape])
        need(bool(result.isfinite().all()), f"got NaN or infinite advantages from {self.spec}; expected finite ones")
        need(not result.requires_grad, f"got advantages with a gradient from {self.spec}; try .detach()")
        return result.to(known["rewards"].dtype)

    def checked_loss(self, result, known: dict):
        """(loss, clipped), as the trainer takes them."""
        loss, clipped = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        loss = self.checked(loss, [known["logprobs"].shape])
        lost = known["logprobs"].requires_grad and not loss.requires_grad
        need(not lost, f"got a loss without a gradient from {self.spec}; try logprobs without .detach()")
        clipped = known["mask"] * 0.0 if clipped is None else self.checked(clipped, [known["logprobs"].shape])
        return loss, clipped.detach().float()


def own_function(kind: str, spec: str) -> OwnFunction:
    """The function that FILE.py:function names; UserError where there is none, or it is not one of its kind."""
    file, _, name = spec.rpartition(":")
    need(Path(file).is_file(), f"got {kind} {spec!r}: no file {file!r}; expected FILE.py:function")
    function = getattr(import_file(kind, spec, file), name, None)
    need(callable(function), f"got {kind} {spec!r}: {file} has no function {name!r}; expected one that it defines")
    return OwnFunction(kind, spec, function)


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


def learning_rates(config: BaseConfig, parameters: int) -> tuple[float, float]:
    """The policy's and the critic's learning rate, by model size where the setting is 0."""
    lora = bool(config.lora_rank)
    critic_lr = config.critic_lr or default_learning_rate("critic", parameters, lora)
    return config.lr or default_learning_rate("policy", parameters, lora), critic_lr


# ------------------------------------------------------------------ output folder (src/parts/running/output_folder.py)


def follow_umask(folder: Path) -> None:
    """Let all files below a new folder have its read and write permissions: safetensors writes for the owner only."""
    allowed = folder.stat().st_mode & 0o666
    for file in filter(Path.is_file, folder.rglob("*")):
        file.chmod(file.stat().st_mode & 0o111 | allowed)


# ---------------------------------------------------------------------- settings (src/programs/verl_train/settings.py)

ADVANTAGES = {  # our estimator -> verl's; those that end in _ours are registered by verl_hooks.py
    "gae": "gae",
    "grpo": "grpo",
    "mean": "grpo",
    "rloo": "rloo",
    "opo": "opo",
    "gpg": "gpg_ours",
    "gpg_verl": "gpg",
    "maxrl": "maxrl_ours",
    **dict.fromkeys(("gdpo", "remax")),  # verl's default trainer gives no scores by function, and no baselines
    "reinforce_pp": "reinforce_plus_plus",
    "reinforce_pp_baseline": "reinforce_plus_plus_baseline",
}
LOSSES = {
    "clip": "vanilla",
    "reinforce": "gpg",
    "gspo": "gspo",
    "cispo": "cispo",
    "sapo": "sapo",
    "gmpo": "geo_mean",
    "dppo_tv": "dppo_tv",
    "dppo_kl": "dppo_kl",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
}
AGGREGATIONS = {
    "token_mean": "token-mean",
    "seq_mean_token_mean": "seq-mean-token-mean",
    "seq_mean_token_sum": "seq-mean-token-sum",
    "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
    "fixed_length": "seq-mean-token-sum-norm",
}
OWN_NAME = "own_ours"  # what the job calls an estimator or a loss of the user's own
OWN_LOSS_MODULE = "verl_own_loss"  # the job's file that puts such a loss into verl's registry

VERL = "0.9.1"
INSTALL = "try `make setup-verl` and .venv-verl/bin/python, or pip install -r requirements-verl.txt elsewhere"


@in_order(advantage="group_size", hardware="dry_run")
@dataclass
class Config(PolicySettings):
    """All settings and their defaults: those of ppo_train.py, then verl's; each is a flag and a key of --config."""

    # algorithm: choices
    advantage: str = setting(
        None, "advantage estimator, or your own, FILE.py:function of scores, groups …", lambda: NamesOrFiles(ADVANTAGES)
    )
    loss: str = setting(
        None, "policy loss, or your own, FILE.py:function of logprobs, old_logprobs …", lambda: NamesOrFiles(LOSSES)
    )
    aggregation: str = setting(None, "how token losses become one number", lambda: list(AGGREGATIONS))
    # machines
    hardware: str = setting(
        "", "preset for machines; other flags win over it", lambda: list(HARDWARE), section="machines"
    )
    nodes: int = setting(1, "number of machines", positive=True)
    gpus_per_node: int = setting(1, "GPUs per machine", positive=True)
    cpus: int = setting(0, "CPUs per node that Ray may use (0: as many as this machine has)")
    # engines
    verl_rollout: str = setting("vllm", "sampling engine", ["vllm", "sglang"], section="engines")
    rollout_tensor_parallel: int = setting(1, "GPUs per sampler", positive=True)
    sequence_parallel: int = setting(1, "GPUs per sequence (Ulysses)", positive=True)
    offload: str = setting("none", "what moves to CPU memory while it is not needed", ["none", "optimizer", "all"])
    override: list[str] = setting(
        [],
        "Hydra override KEY=VALUE for verl, repeatable; wins over the settings",
        section="verl's own keys, and runs of TRL",
    )
    data_source: str = setting(
        "", "verl's data_source of all rows (default: their column source, else the file's name)"
    )
    overrides: str = setting("", "FILE of hand-written overrides, KEY=VALUE per line, for --check to validate")
    from_trl: str = setting(
        "",
        "FILE.py of a run with TRL's GRPOTrainer: its settings, rewards and data; flags win; what is lost is reported",
    )
    trl_processes: int = setting(0, "processes of the TRL run, which scale its batch size (0: nodes x gpus_per_node)")
    ship: list[str] = setting([], "further file that a reward or environment needs, repeatable")
    # what to do
    print: bool = setting(
        False, "print the command and write the job folder, which `ray job submit` takes", section="what to do"
    )
    export: str = setting(
        "", "write run.sh, verl_reward.py and data to this folder, which then needs neither this script nor its bundle"
    )
    check: bool = setting(False, "compose and load everything with the installed verl, without starting a run")
    run: bool = setting(False, "train on this machine, in its own Ray")

    def __post_init__(self):
        super().__post_init__()
        if self.precision == "auto":
            self.precision = "bf16"  # which the GPUs of verl's machines have
            if self.run:
                import torch

                self.precision = precision_on("auto", torch.device("cuda" if torch.cuda.is_available() else "cpu"))


# The flags that a machine stands for; a larger model needs others (references/verl_training.md, memory arithmetic).
ON_GPU = {"precision": "bf16", "gradient_checkpointing": "true", "micro_batch_tokens": "16384"}
SMALL = {"offload": "all", "vllm_memory": "0.4", "micro_batch_tokens": "8192"}
MACHINE = {"gpus_per_node": "8", "vllm_memory": "0.6"}
HARDWARE = {
    "1x24GB": ON_GPU | SMALL,
    "1x80GB": ON_GPU | {"offload": "optimizer", "vllm_memory": "0.5"},
    "8x80GB": ON_GPU | MACHINE,
    "2x8x80GB": ON_GPU | MACHINE | {"nodes": "2"},
}


def given_flags(words: list[str]) -> SimpleNamespace:
    """The settings that a command line has, None for the others; bad flags end the program at once."""
    flags = parse_flags(build_parser(Config, __doc__), words)
    return SimpleNamespace(**dict.fromkeys(["config", *(f.name for f in dataclasses.fields(Config))]) | vars(flags))


def hardware_flags(words: list[str]) -> list[str]:
    """The flags that --hardware stands for, from the command line or the file of --config; others win over them."""
    given, flags = given_flags(words), {}
    if given.config and not given.hardware:  # the file's other lines win over its hardware
        flags = flag_values(yaml_flags(given.config, [*vars(given)]))
    ready = HARDWARE.get(given.hardware or flags.get("hardware"), {})
    return [f"--{name}={value}" for name, value in ready.items() if name not in flags]


def parse_config(argv: list[str]):
    return parse_settings(argv, Config, __doc__)


# ---------------------------------------------------------------------- from trl (src/programs/verl_train/from_trl.py)

# settings of GRPOConfig that count only where the file gives them: without, those of --hardware hold
ONLY_GIVEN = set(
    "bf16 fp16 gradient_checkpointing save_total_limit vllm_gpu_memory_utilization vllm_tensor_parallel_size".split()
)
PEFT_DEFAULTS = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none", "use_rslora": False, "use_dora": False}
READ = {"model", "reward_funcs", "args", "train_dataset", "eval_dataset", "peft_config"}  # arguments of GRPOTrainer
AGGREGATION_OF_TRL = {
    "grpo": "seq_mean_token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
    **dict.fromkeys(("dapo", "bnpo", "cispo"), "token_mean"),
}
# settings of which verl expresses some values only: (these, why)
LIMITED = {
    "loss_type": (tuple(AGGREGATION_OF_TRL), "verl has no others"),
    "scale_rewards": (("group", "none", True, False), "verl has no batch"),
    **{name: ((None, none, -1), "the ratio would be biased") for name, none in (("top_p", 1.0), ("top_k", 0))},
}
MISMATCH_OF_TRL = {  # vllm_importance_sampling_mode -> mismatch
    "sequence_mask": "seq_mask",
    "token_mask": "icepop",
    **dict.fromkeys(("token_truncate", "sequence_truncate"), "tis"),
}
# of the machine or the log; verl has the model's tokenizer
OF_THE_MACHINE = set(
    "output_dir run_name report_to logging_steps logging_first_step log_completions num_completions_to_print tf32 "
    "use_cpu gradient_checkpointing_kwargs save_strategy save_only_model eval_strategy per_device_eval_batch_size "
    "vllm_mode remove_unused_columns vllm_enable_sleep_mode vllm_max_model_length deepspeed fsdp fsdp_config "
    "ddp_timeout dataloader_num_workers dataloader_pin_memory push_to_hub disable_tqdm log_level "
    "resume_from_checkpoint GRPOTrainer.processing_class LoraConfig.task_type".split()
)
# of model_init_kwargs: settings of the job decide
LOADING = {"dtype", "torch_dtype", "attn_implementation", "device_map", "use_cache"}
PATH = "pretrained_model_name_or_path"  # of from_pretrained(…); REMADE: calls that make its model another
REMADE = set("load_state_dict resize_token_embeddings load_adapter add_adapter get_peft_model requires_grad_".split())


class Readings(dict):
    """Settings of a TRL run that note which of them are read by [name]; .get(name) notes nothing."""

    taken: list[str]

    def __getitem__(self, name: str):
        self.taken += [name] if name not in self.taken else []
        return super().__getitem__(name)


@dataclass
class TrlRun:
    """A TRL run as settings of ours."""

    settings: dict
    notes: list[str]  # what has no equal, or does not quite mean the same
    idle: list[str]  # names that the run gives, of the machine or the log
    origins: dict[str, str]  # the names of TRL's that a setting of ours follows from, as a comment

    @property
    def flags(self) -> list[str]:
        text = {name: value if isinstance(value, list) else [value] for name, value in self.settings.items()}
        return [f"--{name}={v if isinstance(v, str) else json.dumps(v)}" for name, vs in text.items() for v in vs]


def rollout_size(t: dict) -> int:
    """Completions of a rollout: TRL's sizes count those of a process, ours those of a step."""
    if t.get("generation_batch_size"):
        return t["generation_batch_size"]
    rows, passes = t["per_device_train_batch_size"], t["gradient_accumulation_steps"]
    return rows * (t["steps_per_generation"] or passes) * t["processes"]


def minibatches(t: dict) -> int:
    """Optimizer steps of a pass over a rollout."""
    update = t["per_device_train_batch_size"] * t["gradient_accumulation_steps"] * t["processes"]
    return max(1, rollout_size(t) // update)


def updates(t: dict) -> int:
    """Optimizer steps of a rollout, which TRL's steps count; nothing is noted as read."""
    return minibatches({**t}) * t.get("num_iterations")


def steps(t: dict) -> int:
    """Rollouts: of TRL's optimizer steps, or of its epochs."""
    if t["max_steps"] > 0 or t.get("steps"):
        return t.get("steps") or max(1, -(-t["max_steps"] // updates(t)))
    return max(1, int(t["num_train_epochs"] * t.get("rows") * t.get("num_generations") / rollout_size({**t})))


def rollouts_between(t: dict, name: str) -> int | None:
    """Rollouts between checkpoints or evaluations: TRL counts optimizer steps, below 1 a share of them all."""
    every, total = t[name] if t.get(name) else None, steps({**t})
    return every and min(total, max(1, round(every * total if every < 1 else every / updates(t))))


def warmup(t: dict) -> int:
    """Rollouts over which the learning rate rises."""
    share = t["warmup_steps"]
    return round(share * steps({**t})) if 0 < share < 1 else -(-int(share) // updates(t))


def kl_estimator(t: dict) -> str | None:
    if not t["beta"]:
        return None
    return ("k3_ratio" if updates(t) == 1 else "k2") if t["use_bias_correction_kl"] else "k3"


def weighted_rewards(t: dict) -> list[str]:
    names, weights = t["reward_funcs"], t["reward_weights"] or [1.0] * len(t["reward_funcs"])
    got = f"got {len(weights)} reward_weights for {len(names)} reward_funcs"
    need(not names or len(weights) == len(names), f"{got}; expected one for each")
    return [f"{name}*{weight}" for name, weight in zip(names, weights, strict=False)]


def precision(t: dict) -> str | None:
    """Of the flags that the file gives: TRL computes in bf16 unless one of them says otherwise."""
    given = {name: t[name] for name in ("fp16", "bf16") if name in t}
    return "fp16" if given.get("fp16") else {True: "bf16", False: "fp32"}.get(given.get("bf16"))


def mismatch(t: dict) -> str:
    """TRL corrects only where vLLM samples."""
    if not (t["use_vllm"] and t["vllm_importance_sampling_correction"]):
        return "none"
    mode, modes = t["vllm_importance_sampling_mode"], ", ".join(MISMATCH_OF_TRL)
    need(mode in MISMATCH_OF_TRL, f"got vllm_importance_sampling_mode {mode!r}; expected one of {modes}")
    return MISMATCH_OF_TRL[mode]


def mismatch_bounds(t: dict) -> tuple[float | None, float | None]:
    """(lower, upper); TRL's are None where there is none, and `cap` is the upper one's old name."""
    if mismatch({**t}) == "none":
        return None, None
    lower, cap = t["vllm_importance_sampling_clip_min"], "vllm_importance_sampling_cap"
    upper = t[cap] if t.get(cap) is not None else t["vllm_importance_sampling_clip_max"]
    return None if mismatch({**t}) == "tis" else lower or 1e-9, OFF if upper is None else upper


def lora_rank(t: dict) -> int | None:
    """The rank of the adapters, which lie on all linear layers."""
    if t.get("LoraConfig.target_modules") == "all-linear":
        t.taken.append("LoraConfig.target_modules")
    return t["LoraConfig.r"] if "LoraConfig.r" in t else None


def overrides(t: dict) -> list[str]:
    """What verl expresses and no setting of ours does."""
    lines, targets = [] if t["shuffle_dataset"] else ["data.shuffle=False"], "LoraConfig.target_modules"
    if t.get(targets, "all-linear") != "all-linear":
        names = t[targets] if isinstance(t[targets], str) else f"[{','.join(t[targets])}]"
        lines.append(f"{MODEL}.target_modules={names}")
    if mismatch({**t}) != "none" and t.get("vllm_importance_sampling_mode") == "sequence_truncate":
        lines.append(f"{CORRECTION}.rollout_is=sequence")
    return lines


# A setting of ours -> TRL's of the same meaning, or how it follows from them; None leaves it out.
SETTINGS = {
    "model": "model",
    "data": "train_dataset",
    "eval_data": lambda t: t["eval_dataset"] if t.get("eval_dataset") else None,
    "reward": weighted_rewards,
    "group_size": "num_generations",
    "batch_size": rollout_size,
    "minibatches": minibatches,
    "ppo_epochs": "num_iterations",
    "max_new_tokens": "max_completion_length",
    "temperature": "temperature",
    "advantage": lambda t: "grpo" if t["scale_rewards"] in ("group", True) else "mean",
    "loss": lambda t: (
        "cispo" if t.get("loss_type") == "cispo" else "gspo" if t["importance_sampling_level"] == "sequence" else "clip"
    ),
    "aggregation": lambda t: AGGREGATION_OF_TRL[t["loss_type"]],
    "clip_eps_low": lambda t: t["epsilon"] if t.get("loss_type") != "cispo" else 1,
    "clip_eps_high": lambda t: (  # of cispo the bound is on the ratio
        (t["epsilon"] if t["epsilon_high"] is None else t["epsilon_high"]) - (t.get("loss_type") == "cispo")
    ),
    "dual_clip": lambda t: t["delta"] or 0,
    "kl_coef": "beta",
    "kl_in": lambda t: "loss" if t["beta"] else None,
    "kl_estimator": kl_estimator,
    "entropy_coef": "entropy_coef",
    "mask_truncated": "mask_truncated_completions",
    "chat_template_kwargs": "chat_template_kwargs",
    "mismatch": mismatch,
    "mismatch_low": lambda t: mismatch_bounds(t)[0],
    "mismatch_high": lambda t: mismatch_bounds(t)[1],
    "steps": steps,
    "lr": "learning_rate",
    "lr_schedule": lambda t: "constant" if str(t["lr_scheduler_type"]).startswith("constant") else "cosine",
    "warmup_steps": warmup,
    "weight_decay": "weight_decay",
    "adam_beta2": "adam_beta2",
    "adam_eps": "adam_epsilon",
    "max_grad_norm": "max_grad_norm",
    "seed": "seed",
    "save_every": lambda t: rollouts_between(t, "save_steps"),
    "keep_checkpoints": "save_total_limit",
    "eval_every": lambda t: rollouts_between(t, "eval_steps"),
    "precision": precision,
    "gradient_checkpointing": "gradient_checkpointing",
    "vllm_memory": "vllm_gpu_memory_utilization",
    "rollout_tensor_parallel": "vllm_tensor_parallel_size",
    "lora_rank": lora_rank,
    "lora_alpha": "LoraConfig.lora_alpha",
    "override": overrides,
}


def other_meanings(t: dict) -> list[str]:
    """What is set in verl, and does not quite mean the same."""
    notes, kind, times = [], str(t["lr_scheduler_type"]), updates(t)
    if t["beta"] and t["use_bias_correction_kl"] and times > 1:
        notes.append("beta: verl lacks ratio x k3 with several updates per batch; on-policy, k2 has the same gradient")
    if t["scale_rewards"] in ("group", True):
        notes.append("the group's deviation: verl adds 1e-6, TRL 1e-4; scores are rounded to keep equal ones equal")
    if t["loss_type"] == "bnpo":
        notes.append("loss_type bnpo: the mean over the tokens of each micro-batch; here over those of the batch")
    if kind not in ("constant", "constant_with_warmup", "cosine"):
        notes.append(f"lr_scheduler_type {kind}: verl's FSDP has constant and cosine; cosine is used, also down to 0")
    if t["max_steps"] <= 0 and not t.get("steps"):
        prompts = rollout_size(t) // t["num_generations"]
        epochs = f"num_train_epochs {t['num_train_epochs']:g}"
        notes.append(f"{epochs}: {steps(t)} steps of {prompts} prompts, for {t['rows']} rows")
    elif times > 1:
        notes.append(f"max_steps, save_steps and warmup_steps count optimizer steps, {times} of which are a step here")
    if mismatch(t) == "tis" and t["vllm_importance_sampling_clip_min"]:
        lower = f"vllm_importance_sampling_clip_min {t['vllm_importance_sampling_clip_min']}"
        notes.append(f"{lower}: verl truncates at the upper bound only")
    if "LoraConfig.r" in t and "LoraConfig.target_modules" not in t:
        notes.append("LoraConfig without target_modules: peft takes the architecture's, verl here all linear layers")
    return notes


def is_idle(t: dict, name: str) -> bool:
    """Whether a setting that no rule reads leaves the training as it is: by its name, its value, or another's."""
    nothing = (None, {}, [], (), (trl_defaults("GRPOConfig") | PEFT_DEFAULTS).get(name.removeprefix("LoraConfig.")))
    off = {
        "use_bias_correction_kl": not t["beta"],
        "num_train_epochs": t["max_steps"] > 0,
        "optim": t["optim"] == "adamw_torch",  # the default without its fused kernel
        "model_init_kwargs": {*(t["model_init_kwargs"] or ())} <= LOADING,
    }
    without_vllm = name.startswith("vllm_") and not t["use_vllm"]
    return name in OF_THE_MACHINE or name in LIMITED or t[name] in nothing or off.get(name, False) or without_vllm


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


class TrlFile:
    """A Python file or notebook with one GRPOTrainer, read from its source without running it."""

    def __init__(self, file: str):
        need(Path(file).is_file(), f"got --from_trl {file!r}; expected the Python file of a run with GRPOTrainer")
        self.file = file
        self.source = source = PythonSource(file, Path(file).read_text(encoding="utf-8", errors="replace"))
        calls = {"GRPOConfig": source.calls.get("GRPOConfig", [])}
        calls["GRPOTrainer"] = [call for kind, call in trainer_calls(source) if kind == "GRPOTrainer"]
        got = f"got --from_trl {file}, which has no GRPOConfig(…)"
        need(calls["GRPOConfig"], f"{got}; expected one; try a copy with GRPOConfig(…) of what a parser gives it")
        for name, places in calls.items():
            lines = ", ".join(str(call.lineno) for call in places)
            several = f"got {file} with several {name}(…), in lines {lines}; expected one; try a copy with one of them"
            need(len(places) <= 1, several)
        self.config, self.call = (next(iter(places), None) for places in calls.values())
        words, unseen = source.arguments(self.call) if self.call else ([], [])
        in_order = self.call.args if self.call else []
        unseen += [node for node in in_order if isinstance(node, ast.Starred)]
        got = f"got GRPOTrainer(…) of {file} with {', '.join(map(ast.unparse, unseen))}"
        need(not unseen, f"{got}; expected each argument; try a copy with them")
        given = dict(zip(trl_today("trainers")["GRPOTrainer"], in_order, strict=False))
        given |= {argument.name: argument.value for argument in words}
        self.trainer = {name: node for name, node in given.items() if not is_none(node)}

    def replaced(self) -> list[str]:
        """Notes on the methods that the file's own trainer and its bases in the file replace or add."""
        names, definitions, notes = class_names(self.source, self.call), self.source.definitions, []
        for name in names:
            owner = definitions.get(name)
            names += [x for x in self.source.bases(owner) if x not in names]
            methods = [x for x in getattr(owner, "body", []) if isinstance(x, DEFS)]
            notes += [f"line {x.lineno}: {name} has its own `{x.name}`, which has no equivalent here" for x in methods]
        return notes

    def model(self) -> tuple[str | None, dict]:
        """(The name of GRPOTrainer's model, what else its from_pretrained(…) is given); None if it cannot be read."""
        source, node, others = self.source, self.source.origin(self.trainer.get("model")), {}
        while isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("to", "cuda"):
            node = source.origin(node.func.value)
        loader = source.code(node.func) if isinstance(node, ast.Call) else ""
        is_frozen = "requires_grad" in {name for _, name in source.stores}
        is_own = loader.partition(".")[0] in source.definitions or is_frozen or REMADE & {*source.calls}
        if re.fullmatch(r"(\w+\.)?(?!AutoPeft)\w+ForCausalLM\.from_pretrained", loader) and not is_own:
            arguments, unseen = source.arguments(node)
            others = {argument.name: source.code(argument.value) for argument in arguments}
            node = None if unseen else source.argument(node, PATH, (PATH,))
        with contextlib.suppress(ValueError, TypeError):
            name = source.value(node)
            return (name if isinstance(name, str) else None), {key: x for key, x in others.items() if key != PATH}
        return None, {}

    def lora(self, is_given: bool) -> ast.Call | None:
        """The LoraConfig(…) of GRPOTrainer; UserError for adapters that cannot be read, unless a flag decides."""
        node = self.source.origin(self.trainer.get("peft_config"))
        if node is None or is_none(node):
            return None
        is_read = isinstance(node, ast.Call) and self.source.name_of(node) == "LoraConfig"
        got = f"got peft_config={ast.unparse(node)[:80]} in {self.file}"
        need(is_read or is_given, f"{got}; expected LoraConfig(…) with literals; try --lora_rank R, or 0 for none")
        return node if is_read else None

    def literals(self, call: ast.Call) -> dict:
        """The keywords of a call, and what is assigned to its object later; UserError where one is not a literal."""
        source, values = self.source, {}
        arguments, unseen = source.arguments(call)
        unknown = [f"**{source.code(node)} in line {node.lineno}" for node in unseen]
        for argument in [*arguments, *source.changes(call)]:
            try:
                values[argument.name] = source.value(argument.value if argument.is_sure else ast.Pass())
            except (ValueError, TypeError):
                unknown.append(f"{argument.name}={source.code(argument.value)} in line {argument.value.lineno}")
        unknown += [f"{source.code(node)} in line {node.lineno}" for node in source.hidden_changes(call)]
        got = f"got {', '.join(unknown)} for {source.name_of(call)}(…) of {self.file}"
        need(not unknown, f"{got}; expected literals; try a copy with its values")
        return values

    def rewards(self) -> list[str]:
        """The names of the reward functions."""
        given = self.trainer.get("reward_funcs")
        need(given is not None, f"got {self.file} without GRPOTrainer(reward_funcs=…); expected it; try --reward")
        node = self.source.resolved(given)
        functions = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        definitions = [item for item in self.source.tree.body if not isinstance(item, ast.Import | ast.ImportFrom)]
        tops = {name for item in definitions for name in bound_names(item)}
        names = [item.id for item in functions if isinstance(item, ast.Name) and item.id in tops]
        got = f"got reward_funcs {', '.join(map(ast.unparse, functions))} in {self.file}"
        got += "; expected functions of that file; try --reward FILE.py:function for each"
        need(len(names) == len(functions), got)
        return names

    def data(self, name: str) -> str:
        """The file, or hub id[:config][@split], of a `load_dataset(…)`; "" where it is none that can be read off."""
        source, node, split = self.source, self.source.resolved(self.trainer.get(name)), None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):  # load_dataset(…)["train"]
            node, split = source.resolved(node.value), node.slice.value
        if not isinstance(node, ast.Call) or source.name_of(node) != "load_dataset" or len(node.args) > 2:
            return ""  # with calls around it, such as .map(…), its rows are others
        arguments, unseen = source.arguments(node)
        nodes = {argument.name: argument.value for argument in arguments}
        nodes |= dict(zip(("path", "name"), node.args, strict=False))
        try:
            given = {key: source.value(value) for key, value in nodes.items()}
        except (ValueError, TypeError):
            return ""
        path, subset, files = (given.pop(key, None) for key in ("path", "name", "data_files"))
        split = given.pop("split", None) or split or "train"
        if given or unseen or not str(split).isidentifier() or not isinstance(path, str):
            return ""
        is_file = path in ("json", "csv", "parquet")
        near = Path(self.file).parent / str(files if is_file else path)
        if is_file:
            is_plain = isinstance(files, str) and split == "train" and not set("*?[") & {*files}
            return (str(near) if near.is_file() else files) if is_plain else ""
        if files or near.is_dir():
            return ""  # not of the hub
        name = f"{path}:{subset}" if subset else path
        return name if split == "train" else f"{name}@{split}"


def settings_of_trl(file: TrlFile, given) -> tuple[Readings, set[str]]:
    """(settings of a TRL run, the names that it gives). Flags in `given` win."""
    config, lora = file.literals(file.config), file.lora(given.lora_rank is not None)
    values, names = trl_defaults("GRPOConfig") | config, {*config}
    values = {name: value for name, value in values.items() if name in config or name not in ONLY_GIVEN}
    lora_settings = file.literals(lora) if lora else {}
    values |= {f"LoraConfig.{name}": value for name, value in ((PEFT_DEFAULTS if lora else {}) | lora_settings).items()}
    rest = {f"GRPOTrainer.{name}": ast.unparse(node)[:60] for name, node in file.trainer.items() if name not in READ}
    values |= rest
    names |= {*rest, *(f"LoraConfig.{name}" for name in lora_settings)}
    values["model"], loading = file.model()
    values |= {"model_init_kwargs": loading} if loading else {}  # GRPOConfig's are for a model by name
    names |= {"model_init_kwargs"} if loading else set()
    named = values["model"] or given.model
    need(named, f"got a model in {file.file} whose name cannot be read; expected a text; try --model M")
    values["reward_funcs"] = [] if given.reward else file.rewards()
    values |= {name: file.data(name) for name in ("train_dataset", "eval_dataset")}
    names |= READ & {*file.trainer}
    shown = file.source.resolved(file.trainer.get("train_dataset"))
    where = f", line {shown.lineno}: `{ast.unparse(shown)[:80]}`" if shown else ", no train_dataset"
    got = f"got {file.file}{where}, without a data set that can be read off the source"
    expected = "expected load_dataset(…) of a file or hub id, without .map and the like"
    way = "try `DATASET.to_json('rows.jsonl')` there, and --data rows.jsonl here (--eval_data for the eval_dataset)"
    need(given.data or values["train_dataset"], f"{got}; {expected}; {way}")
    values["steps"] = given.steps
    if values["max_steps"] <= 0 and not given.steps:
        values["rows"] = len(read_rows(given.data or values["train_dataset"]))
    return Readings(values), names


def run_of_trl(name: str, given, processes: int) -> TrlRun:
    """A file's run as settings of ours. `given`: flags that win; None where there is none."""
    file = TrlFile(name)
    t, names = settings_of_trl(file, given)
    t |= {"processes": processes}
    for setting, (values, why) in LIMITED.items():
        words = [value for value in values if isinstance(value, str)]
        fits = f"one of {', '.join(words)}" if words else "none"
        need(t.get(setting) in values, f"got {setting} {t.get(setting)!r}; expected {fits}: {why}")
    settings, taken, notes = {"algorithm": "grpo", "missing_eos_penalty": 0}, {}, []
    for setting, rule in SETTINGS.items():
        t.taken = taken[setting] = []
        value = rule(t) if callable(rule) else t[rule] if rule in t else None
        settings |= {} if value is None else {setting: value}
    t.taken = []
    factors = " x ".join(f"{name} {t[name]}" for name in taken["batch_size"] if t[name])
    notes.append(f"batch_size {settings['batch_size']} = {factors} of the TRL run")
    if not given.trl_processes:
        notes[0] += f", as many as GPUs ({given.hardware or '--gpus_per_node'}); --trl_processes N if it had others"
    if settings["reward"]:
        rewards = Path(given.output_dir or Config.output_dir) / "trl_rewards.py"
        rewards.parent.mkdir(parents=True, exist_ok=True)
        rewards.write_text(extract(file.source.runnable, t["reward_funcs"]), encoding="utf-8")
        settings["reward"] = [f"{rewards}:{spec}" for spec in settings["reward"]]
    for name in [name for name in ("model", "data", "eval_data") if getattr(given, name)]:  # their flags follow
        settings.pop(name, None)
    rest = [x for x in t if x in names - {"eval_dataset"} - {name for reads in taken.values() for name in reads}]
    lost = [name for name in rest if not is_idle({**t}, name)]
    notes += other_meanings({**t}) + file.replaced()
    if given.lora_rank is None and "LoraConfig.r" not in t:
        no_adapters = "is not GRPOTrainer's peft_config: no adapters; try --lora_rank"
        notes += [f"LoraConfig in line {x.lineno} {no_adapters}" for x in file.source.calls.get("LoraConfig", [])]
    for name in lost:
        of, dot, key = name.partition(".")
        known = relation(name, vars(given), {})
        none = f"has no equivalent here{known and f'; {known}'}"
        notes.append(f"{of}({key}={t[name]!r}): {none}" if dot else f"{name} {t[name]!r}: {none}")
    if "eval_dataset" in names and not (t["eval_dataset"] or given.eval_data or given.hold_out):
        notes.append("eval_dataset is not in the file, so nothing is evaluated; try --eval_data FILE, or --hold_out N")
    origins = {
        setting: f" (TRL: {', '.join(reads)}{'' if names & {*reads} else ', by default'})"
        for setting, reads in taken.items()
        if reads and getattr(given, setting) is None
    }
    return TrlRun(settings, notes, [name for name in rest if name not in lost], origins)


def trl_run(words: list[str], machines: list[str] = ()) -> TrlRun | None:
    """What --from_trl stands for; other flags win over it. `machines`: the flags of --hardware."""
    given, defaults = given_flags(words), given_flags(machines)
    need(given.from_trl or not given.trl_processes, "got --trl_processes; expected it with --from_trl FILE.py")
    if not given.from_trl:
        return None
    need(not given.config, "got --from_trl with --config; expected one of the two; try --from_trl with flags")
    if given.export:
        given.output_dir = f"{given.export}/run"
    sizes = [getattr(given, name) or getattr(defaults, name) or 1 for name in ("nodes", "gpus_per_node")]
    run = run_of_trl(given.from_trl, given, given.trl_processes or sizes[0] * sizes[1])
    for note in run.notes:
        say(f"note: {note}")
    return run


# ------------------------------------------------------------------------------ data (src/programs/verl_train/data.py)

FOREIGN = {"data_source", "prompt", "reward_model"}  # the columns that tell a row in verl's form


def verl_rows(
    rows: list[dict], prompt_column: str, split="train", source="data", conversations=False, places=()
) -> tuple[list[dict], list[str]]:
    """Rows in verl's five columns, and the names of the columns that reward functions get.

    `source` is for rows without one; verl groups its validation metrics by it. `conversations` begin with a user's turn
    and note which columns their row lacks. Messages name a row by its entry in `places`. A column that is not text,
    numbers or booleans throughout is JSON text, and named in `json_columns`. Rows that others wrote in verl's form stay
    as they are, with agent_name, tools_kwargs, ….
    """
    foreign = False
    if rows and FOREIGN <= set(rows[0]) and isinstance(rows[0]["reward_model"], dict):
        foreign = all(not (row.get("extra_info") or {}).get("ground_truth_field") for row in rows)
        as_given, rows = rows, [{prompt_column: row["prompt"], **row_columns(row)} for row in rows]
    names = list(dict.fromkeys(name for row in rows for name in row if name != prompt_column))
    texts = {name for name in names if not is_plain([row.get(name) for row in rows])}
    written = []
    for index, row in enumerate(rows):
        where = places[index] if places else f"row {index + 1}"
        prompt = prompt_of(row, prompt_column, where)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        need(
            messages[-1]["role"] != "assistant",
            f"{where}: got a prompt that ends in an assistant's turn, after which verl begins another; expected a "
            "user's; try ppo_train.py or grpo_train.py, which continue it",
        )
        odd = sorted({key for message in messages for key in message} - {"role", "content"})
        need(not odd, f"{where}: got messages with {', '.join(odd)}; expected only role and content in verl's parquet")
        made = as_given[index] if foreign else parquet_row(row, index, (split, source), names, texts)
        written.append({**made, "prompt": messages, "extra_info": {**(made.get("extra_info") or {})}})
        if conversations:
            written[-1]["extra_info"]["absent_columns"] = [name for name in names if name not in row]
        elif isinstance(prompt, str):
            written[-1]["extra_info"]["prompt_is_text"] = True
    return written, [name for name in names if name not in ("prompt", "prompts", "completions", "completion_ids")]


def is_plain(values: list) -> bool:
    """Whether parquet holds a column as it is: text, booleans, 64-bit integers or numbers throughout, or nothing."""
    kinds = {type(value) for value in values if value is not None}
    return kinds in ({str}, {bool}, {float}) or (kinds == {int} and all(abs(v or 0) < 2**63 for v in values))


def parquet_row(row: dict, index: int, origin: tuple[str, str], names: list[str], texts: set[str]) -> dict:
    """One row without its prompt; a column that only other rows have is null."""
    gold, field, truth = ground_truth_of(row)
    extra, coded = {"index": index, "split": origin[0], "ground_truth_field": field}, []
    for name in names:
        value = None if name == gold else row.get(name)
        key = info_key(name)
        if name in texts and value is not None:
            coded.append(key)
            value = json.dumps(value, ensure_ascii=False)
        extra[key] = value
    return {
        "data_source": row.get("source") if isinstance(row.get("source"), str) and row["source"] else origin[1],
        "ability": "code" if "tests" in row else "math" if "answer" in row else "chat",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {**extra, "json_columns": coded},
    }


def row_columns(row: dict) -> dict:
    """The columns of a row in verl's schema, as they were before; a foreign row's answer is its ground truth."""
    extra, truth = row.get("extra_info") or {}, (row.get("reward_model") or {}).get("ground_truth")
    coded = extra.get("json_columns")
    coded = set() if coded is None else {*coded}  # an array where pandas read the row
    columns = {
        name.removeprefix("column:"): json.loads(value) if name in coded and value is not None else value
        for name, value in extra.items()
        if name not in OWN_INFO
    }
    name, _, form = str(extra.get("ground_truth_field") or "").partition(":")
    if name and name != "none":
        columns[name] = json.loads(truth) if form == "json" else truth
    elif not name:  # not written here or by data_loader.py
        columns = {"source": row.get("data_source"), "answer": truth, "ground_truth": truth, **columns}
    absent = {*(extra.get("absent_columns") or ())}
    return {name: value for name, value in columns.items() if name not in absent}


def write_parquet_file(rows: list[dict], path: Path) -> None:
    """Write rows in verl's schema; the file appears whole or not at all."""
    import pyarrow
    import pyarrow.parquet

    names, temporary = dict.fromkeys(name for row in rows for name in row), path.with_suffix(".tmp")
    table = pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    pyarrow.parquet.write_table(table, temporary)
    os.replace(temporary, path)


def parquet_rows(path: Path) -> list[dict]:
    return [row for _, row in parquet_records(str(path))]


def count_parameters(config: Config) -> float | None:
    """Number of weights: from the headers of safetensors files, or from a size in the model's name."""
    total = 0
    for path in Path(config.model).glob("*.safetensors"):
        header = safetensors_header(path)
        total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)([BM])(?![A-Za-z0-9])", Path(config.model).name.upper())
    return total or (float(size[1]) * {"M": 1e6, "B": 1e9}[size[2]] if size else None)


def safetensors_header(path: Path) -> dict:
    with path.open("rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def end_ids_of(path: str, tokenizer) -> list[int]:
    """The tokens that end an answer: those of a model's generation config, and the tokenizer's own."""
    from transformers import GenerationConfig

    ends = None
    with contextlib.suppress(OSError, ValueError):
        ends = GenerationConfig.from_pretrained(path).eos_token_id
    return ending_ids(ends, tokenizer)


def longest_context(path: str) -> int | None:
    """The positions that a model has; None where its configuration names none, or is not here."""
    from transformers import PreTrainedConfig

    with contextlib.suppress(OSError, ValueError):
        shape, _ = PreTrainedConfig.get_config_dict(path)  # also of a class that transformers does not have
        return (shape | (shape.get("text_config") or {})).get("max_position_embeddings")


def parquet_length(path: str) -> int:
    import pyarrow.parquet

    return pyarrow.parquet.read_metadata(path).num_rows


def own_template(model: str) -> bool:
    """Whether a model brings a chat template; a hub id is taken to."""
    folder = Path(model)
    if not folder.is_dir() or (folder / "chat_template.jinja").exists():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.exists() and bool(json.loads(settings.read_text(encoding="utf-8")).get("chat_template"))


def plain_text_template(model: str) -> str:
    """A template that writes text as it is, after the start token that the tokenizer puts before plain text."""
    start = ""
    with contextlib.suppress(OSError, ValueError):
        from transformers import AutoTokenizer

        if not Path(model).is_dir():
            hub_is_reached()  # or its client would try again for a minute
        tokenizer = AutoTokenizer.from_pretrained(model)
        start = "{{ bos_token }}" if tokenizer("x").input_ids[0] == tokenizer.bos_token_id is not None else ""
    return start + "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def chat_template(model: str, rows: list[dict], chat: bool = False, file: str = "") -> str | None:
    """The chat template that gives verl our token ids: that of --chat_template, or where prompts are plain text."""
    is_text = {row["extra_info"].get("prompt_is_text", False) for row in rows}
    need(chat or len(is_text) == 1, "got both text prompts and chat messages; expected one kind with verl")
    has_template = file or own_template(model)
    has = f"got --chat, but {model!r} has no chat template; expected one; try --chat_template FILE"
    need(has_template or not chat, has)
    if is_text == {True} and not chat:
        if has_template and model != EMBEDDED_MODEL:
            say(
                f"warning: {len(rows)} prompts are strings, which bypass the chat template of {model}: right for a "
                "base model, but an instruct model rarely answers, and rewards stay near 0; try --chat"
            )
        return plain_text_template(model)
    if file or has_template:
        return template_text(file) if file else None
    say("warning: chat prompts, but the tokenizer has no chat template: messages are joined by newlines")
    return "{% for message in messages %}{{ message['content'] }}{{ '\\n' }}{% endfor %}"


# ---------------------------------------------------------------------- refusals (src/programs/verl_train/refusals.py)

SAMPLER, KWARGS = "trainer.v1.sampler.custom_sampler", "trainer.v1.sampler.sampler_kwargs"
WEIGHT_DTYPE = "model_dtype"  # below a part that FSDP shards

# Settings that verl cannot express: (the value or values that mean the same there, why another is refused).
FIXED = {
    "kl_target": ([0.0], "verl's controller counts nats per token; try --override algorithm.kl_ctrl.type=adaptive"),
    "mask_truncated": ([False], "verl trains on truncated completions; try --overlong_share 0.2"),
    "advantage_std": (["unbiased"], "verl's standard deviation is the unbiased one"),
    "advantage_eps": ([1e-6], "verl adds 1e-6"),
    "whiten_rewards": ([False], "verl does not whiten rewards"),
    "whiten_advantages": ([True], "verl always whitens GAE's advantages"),
    "turn_baseline": (["conversation"], "verl's estimators compare whole conversations; try scripts/ppo_train.py"),
    "max_oversampling": ([1.0], "verl replaces a group at a time; try --max_refills"),
    "target_kl": ([0.0], "verl ends no update early; try fewer --ppo_epochs"),
    "critic": (["separate"], "verl's critic has its own backbone"),
    "attn_implementation": (
        ["auto"],
        "verl's actor takes flash_attention_2; try --override "
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa "
        "actor_rollout_ref.model.use_remove_padding=False",
    ),
    "merge_lora": ([False], "verl saves adapters; merge them afterwards, with peft's merge_and_unload"),
    "load_in_4bit": ([False], "verl trains no 4-bit weights; try --lora_rank with --offload all"),
    "device": (["auto", "cuda"], "verl finds the devices by itself"),
    "metrics_file": ([""], "verl writes its own names; try scripts/ppo_train.py"),
    "metric_names": ([""], "verl writes its own names; try scripts/ppo_train.py"),
    "dry_run": ([False], "--check is the dry run"),
}

# Settings that mean nothing to verl, or have a counterpart that is always on: why. They are told, and the job goes on.
IDLE_IN_VERL = {
    "rollout_engine": "it is the engine of a single process; verl samples with --verl_rollout",
    "rollout_batch_size": "the rollout engine forms its own batches",
    "decode_graphs": "the rollout engine has graphs of its own",
    "vllm_args": "try --override +actor_rollout_ref.rollout.engine_kwargs.vllm.KEY=VALUE",
    "check_sync": "verl does not compare weights; watch rollout_corr/kl with --mismatch",
    "share_prompts": "verl has actor_rollout_ref.actor.use_prefix_grouper, with the package prefix_grouper",
    "logits_chunk": "verl has no such bound; memory follows --micro_batch_tokens",
    "max_bad_updates": "verl skips a non-finite update and goes on; watch actor/grad_norm",
    "plot_every": "verl draws no curves; metrics.jsonl has the figures",
    "threads": "verl's processes set their own",
    "save_dtype": "verl saves fp32 weights; its model merger writes the folder",
    "stop_when": "verl's job does not judge itself; run scripts/diagnose.py on its folder",
}
# Overrides that would undo what a setting or a guard of this script does: (why, what to write).
TRAPS = {
    "custom_reward_function": ("is read by the old trainer only", "--reward FILE.py:function"),
    "reward_model": ("is read by the old trainer only", "--reward, or --override reward.reward_model.…"),
    "reward.custom_reward_function": ("is not read by the job's reward manager", "--reward FILE.py:function"),
    "reward.reward_manager": ("removes token ids, length penalties and the guard on rewards", "--reward"),
    f"{CORRECTION}.bypass_mode": ("makes the trainer leave out the correction", "--mismatch"),
    SAMPLER: ("removes the guard that ends the run when a reward raises", "leaving it out"),
    KWARGS: ("belongs to the guard that ends the run when a reward raises", "--max_refills"),
    "trainer.v1.sampler.sync_refill_failed_groups": ("hides rollouts and rewards that fail", "leaving it out"),
    "trainer.v1.trainer_mode": ("uses another replay buffer, without the guard on rewards", "leaving it out"),
    "trainer.total_epochs": ("can end the run before its last step, without a checkpoint", "--steps"),
    "trainer.total_training_steps": ("is --steps here, on which the last checkpoint depends", "--steps"),
    "trainer.save_freq": ("can leave out the last checkpoint", "--save_every"),
    "trainer.use_v1": ("chooses a trainer without the guard on rewards", "leaving it out"),
}

ACTIONS = ("print", "export", "check", "run")


def check_expressible(c: Config) -> None:
    """Raise UserError for settings that verl has no equal of."""
    if is_own(c.advantage) and "groups" in own_function("advantage", c.advantage).names:
        GROUPED.add(c.advantage)
    if is_own(c.loss):
        own_function("loss", c.loss)  # refuses one that cannot be called
    for name in ("model", "critic_model"):
        refuse_adapter(getattr(c, name), f"--{name}", "whose reference in verl would be the base model")
    check_config(c)
    acts = {"advantage_std": "grpo", "advantage_eps": "grpo", "whiten_advantages": "gae"}
    for name, (allowed, why) in FIXED.items():
        value = getattr(c, name)
        fits = value in allowed or acts.get(name, c.advantage) != c.advantage
        shown = " ".join(value) if isinstance(value, list) else value
        need(fits, f"got {name} {shown}; expected {allowed[0] or 'none'} with verl: {why}")
    check_idle(c, bool(c.environment))
    check_room(c, c.max_prompt_tokens)
    prompts = c.batch_size // c.group_size
    whole = c.minibatches * c.group_size * max(1, prompts // c.minibatches)
    mean = "seq_mean_token_mean"
    flash = ["advantage gae"] if c.advantage == "gae" and "trainer.device=cpu" not in c.override else []
    flash += [f"sequence_parallel {c.sequence_parallel}"] if c.sequence_parallel > 1 else []
    refused = {
        f"advantage {c.advantage}; expected one that verl's default trainer computes; try --algorithm grpo, or "
        "scripts/ppo_train.py": not ADVANTAGES.get(c.advantage, OWN_NAME),
        "kl_estimator k3_ratio with several updates per batch; expected one, where verl's k3+ is the same; try k2": (
            c.kl_estimator == "k3_ratio" and c.kl_coef and c.ppo_epochs * c.minibatches > 1
        ),
        f"lora_alpha {c.lora_alpha}; expected a whole number with verl; try {max(1, round(c.lora_alpha))}": (
            c.lora_rank and not float(c.lora_alpha).is_integer()
        ),
        "vf_coef 0; expected more than 0 with verl, whose critic always learns; try --vf_coef 0.5": (
            c.advantage == "gae" and not c.vf_coef
        ),
        f"loss {c.loss} with aggregation {c.aggregation}; expected {mean}, verl's only one": (
            c.loss in ("sapo", "gmpo") and c.aggregation != mean
        ),
        f"precision fp32 with {', '.join(flash)}; expected bf16 or fp16, as verl computes these with flash attention "
        "alone; try --precision bf16": c.precision == "fp32" and flash,
        "lr_schedule linear; expected constant or cosine with verl's FSDP; try cosine": c.lr_schedule == "linear",
        f"batch_size {c.batch_size}, group_size {c.group_size}, minibatches {c.minibatches}; expected whole groups in "
        f"each minibatch, as verl counts prompts; try --batch_size {whole}": prompts % c.minibatches,
    }
    for got, wrong in refused.items():
        need(not wrong, f"got {got}")
    chosen = [name for name in ACTIONS if getattr(c, name)]
    got = f"got {', '.join(chosen) or 'nothing to do'}"
    need(len(chosen) == 1, f"{got}; expected one of --{' --'.join(ACTIONS)}")


def split_override(text: str) -> tuple[str, str, str]:
    """(`+`, `++`, `~` or nothing; key; value) of KEY=VALUE; UserError for other text and for a trap."""
    match = re.fullmatch(r"(\+\+|\+|~)?([\w.@/-]+)=(.*)", text, re.DOTALL)
    need(match, f"got --override {text!r}; expected KEY=VALUE; try --override trainer.log_val_generations=4")
    sign, key, value = match.groups()
    expected = f"expected a key that verl {VERL} acts upon"
    for trap, (why, instead) in TRAPS.items():
        caught = key == trap or key.startswith(f"{trap}.") or trap.startswith(f"{key}.")
        need(not caught, f"got --override {text!r}: {key} {why}; {expected}; try {instead}")
    effect, instead = advice_today(key, value) or ("", "")
    need(not effect, f"got --override {text!r}: verl {effect}; {expected}; try {instead}")
    return sign or "", key, value


def say_notes(config: Config) -> None:
    """Tell which of the user's settings mean nothing to verl, or something else."""
    usual = Config()
    for name in IDLE_IN_VERL:
        if getattr(config, name) != getattr(usual, name):
            say(f"note: {name} {getattr(config, name)}: {IDLE_IN_VERL[name]}")
    if config.warmup_steps:
        say("note: warmup_steps: verl's first update has learning rate 0, so its rates follow ours one step later")
    if config.loss in ("clip_cov", "kl_cov"):
        say(f"note: loss {config.loss}: verl chooses the tokens in each micro-batch, ours in the minibatch")


def batch_findings(c: Config) -> list[str]:
    """Sizes for which verl fills up with padding sequences without a word, or ends after minutes."""
    tokens, gpus = c.micro_batch_tokens * c.sequence_parallel, c.nodes * c.gpus_per_node
    replicas, part = max(1, gpus // c.sequence_parallel), c.batch_size // c.minibatches
    batch = math.lcm(replicas, c.group_size) * c.minibatches
    least = math.ceil(c.conversation_tokens / c.sequence_parallel)
    worst = part // replicas * c.conversation_tokens
    shares = {name: getattr(c, name) for name in ("sequence_parallel", "rollout_tensor_parallel")}
    wrong = {f"{name} {n} for {gpus} GPUs; expected a divisor": gpus % n for name, n in shares.items()} | {
        f"micro_batch_tokens {c.micro_batch_tokens}; expected {least}, a sequence's share of a GPU": (
            tokens < c.conversation_tokens
        ),
        f"{part} completions in a minibatch for {replicas} replicas of the policy; expected a multiple, as verl fills "
        f"up with padding; try --batch_size {batch}": part % replicas,
        f"loss gmpo, micro_batch_tokens {c.micro_batch_tokens}; expected {worst}, a minibatch in one piece, as verl's "
        "geo_mean adds up the means of its micro-batches": c.loss == "gmpo" and tokens < worst,
    }
    return [f"batch: got {text}" for text, is_wrong in wrong.items() if is_wrong]


# ------------------------------------------------------------------------ rewards (src/programs/verl_train/rewards.py)

REWARD_ERROR = "reward_error.txt"  # of the output folder: why a reward or an environment ended the run
REWARD_FAILED = "REWARD FAILED"
JOB_FILE, JOB_FOLDER = "job.json", "$JOB"  # what a job's modules are told, and what stands there for its folder
ENVIRONMENT_FAILED = "ENVIRONMENT FAILED"


def job_settings(job: Path) -> dict:
    """What a job's modules are told, with the files where they lie."""
    text = (job / JOB_FILE).read_text(encoding="utf-8")
    return json.loads(text.replace(JOB_FOLDER, json.dumps(str(job))[1:-1]))


class Gathering:
    """Calls a function of a list, in one thread, with all that waits: what arrives meanwhile is its next list."""

    def __init__(self, function, name: str):
        self.function = function
        self.waiting, self.thread = queue.SimpleQueue(), ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, item) -> Future:
        """Queue one item; the future is the item's entry in the list that the function returns."""
        future = Future()
        self.waiting.put((item, future))
        self.thread.submit(self.drain)
        return future

    def drain(self) -> None:
        """Call the function with all that waits; what it raises is every item's."""
        batch = []
        with contextlib.suppress(queue.Empty):
            while True:
                batch.append(self.waiting.get_nowait())
        try:
            results = self.function([item for item, _ in batch]) if batch else []
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)


class RewardBatcher:
    """Scores completions that come one at a time, as verl sends them, in the batches that reward functions expect.

    One thread calls the functions, as in our trainers; what arrives while it is busy is its next batch. `job` is what
    `job_settings` returns.
    """

    def __init__(self, job: dict):
        self.reward = Reward(job["rewards"], CallLimits(*job["reward_limits"]))
        self.columns, self.error_file = job["columns"], job["error_file"]
        self.gathering = Gathering(self.score_all, "reward")

    def score_all(self, batch: list[tuple]) -> list[dict]:
        """What verl gets for each completion (row, text, ids)."""
        rows, texts, ids = zip(*batch, strict=True)
        try:
            scores, parts = self.reward(list(rows), list(texts), list(ids))
        except Exception as error:  # a plain error: Ray has to carry it to processes that do not know our classes
            raise RuntimeError(f"{REWARD_FAILED}: {error}") from None
        return [named_scores(score, {name: each[i] for name, each in parts.items()}) for i, score in enumerate(scores)]

    async def score(self, row: dict, text: str, ids: list[int]) -> dict:
        """The weighted sum as `score`, and every function's own value; a failure is told and left for the launcher."""
        try:
            return await asyncio.wrap_future(self.gathering.submit((self.row(row), text, ids)))
        except Exception as error:
            tell_failure(str(error), self.error_file)
            raise

    def row(self, row: dict) -> dict:
        """A row of verl's data as our rewards know it."""
        known, messages = row_columns(row), [dict(message) for message in row["raw_prompt"]]
        is_text = bool(row["extra_info"].get("prompt_is_text"))
        prompt = "".join(message["content"] for message in messages) if is_text else messages
        return {"prompt": prompt, "columns": {name: known.get(name) for name in self.columns}}


def bits_of(group_size: int) -> int:
    """Bits of a number of which float32 adds up group_size equal ones exactly."""
    return 24 - (group_size - 1).bit_length()


def exact_in_means(score: float, group_size: int) -> float:
    """The score to so few bits that float32 adds up a group of equal ones exactly; it changes by 2^-bits at most.

    verl's mean of eight 1.2 is 1.1999999; beside a deviation of 1e-7 and its epsilon of 1e-6 that makes advantages of
    0.1 where there should be none.
    """
    bits = bits_of(group_size)
    mantissa, exponent = math.frexp(score)
    return math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits)


def named_scores(score: float, parts: dict[str, float | None]) -> dict[str, float]:
    """What verl gets for one completion; `acc`, its name for accuracy, is full marks of the first function."""
    first = next(iter(parts.values()), None)
    named = {("acc_2" if name == "acc" else name): value or 0.0 for name, value in parts.items()}
    return {"score": score, "acc": float(first is not None and first >= 1), **named}


def tell_failure(text: str, error_file: str) -> None:
    """Print why a run will end, and leave it where the launcher looks for it."""
    print(f"\n{text}\n", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):  # the folder may be another machine's
        if error_file:
            Path(error_file).write_text(f"{text}\n", encoding="utf-8")


def hooks(job: Path) -> tuple[type, type]:
    """(TokenRewardManager, StrictReplayBuffer), for verl, with our estimators registered; verl_hooks.py calls this."""
    settings = job_settings(job)
    register_estimators(job, settings["own"].get("advantage", ""))
    return token_reward_manager(settings), strict_replay_buffer()


def token_reward_manager(job: dict):
    """The class TokenRewardManager, for verl."""
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

    class TokenRewardManager(RewardManagerBase):
        """Tells our rewards the prompt, the token ids and special tokens, and takes penalties for length."""

        def __init__(self, config, tokenizer, compute_score, **kwargs):
            super().__init__(config, tokenizer, compute_score)
            given = config.reward.get("reward_kwargs") or {}
            self.missing, self.share = float(given.get("missing_eos_penalty", 0)), float(given.get("overlong_share", 0))
            self.limit, self.group_size = config.data.max_response_length, config.actor_rollout_ref.rollout.n
            self.ends = end_ids_of(config.actor_rollout_ref.model.path, tokenizer)
            self.batcher = RewardBatcher(job)

        async def run_single(self, data) -> dict:
            item = data[-1]
            width = item.batch["responses"].shape[-1]
            length = int(item.batch["attention_mask"][-width:].sum())
            ids = item.batch["responses"][:length].tolist()
            scored = await self.batcher.score(item.non_tensor_batch, visible_text(self.tokenizer, ids, self.ends), ids)
            missing = 0.0 if ids and ids[-1] in self.ends else self.missing
            score = scored["score"] - missing - overlong_penalty(length, self.limit, self.share)
            return {"reward_score": exact_in_means(score, self.group_size), "reward_extra_info": scored}

    return TokenRewardManager


def strict_replay_buffer():
    """The class StrictReplayBuffer, for verl."""
    from collections import Counter

    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    class StrictReplayBuffer(ReplayBuffer):
        """verl's replay buffer; a failed rollout or reward ends the run, DAPO's replacements are counted."""

        def __init__(self, *args, sampler_kwargs, refill_fn, **kwargs):
            options = dict(sampler_kwargs or {})
            self.error_file, self.max_refills = Path(options.get("error_file", "")), options.get("max_refills", 0)
            self.refilled, self.dispatch = 0, refill_fn
            filtering = {}
            if options.get("filter_groups_metric"):
                filtering = {"filter_groups_metric": options["filter_groups_metric"], "gen_batch_size": 1}
                filtering["train_batch_size"] = options["train_batch_size"]
            super().__init__(*args, sampler_kwargs=sampler_kwargs, refill_fn=self.refill, **filtering, **kwargs)

        def refill(self, count: int) -> int:
            self.refilled += count
            return self.dispatch(count)

        def sample(self, global_steps, partition_id, batch_size):
            """A batch of the step; the count of replacements starts anew."""
            self.refilled = 0
            return super().sample(global_steps, partition_id, batch_size)

        def _dapo_filtered_keys(self, partition_id):
            if self.filter_groups_metric and self.refilled >= self.max_refills * self.train_batch_size:
                return set(), Counter()
            return super()._dapo_filtered_keys(partition_id)

        def _select_prompt_uids(self, partition_id, sampleable_keys, batch_size):
            last = super()._dapo_filtered_keys(partition_id)[0]  # their places are left over, once refills are used up
            picked, *snapshots = super()._select_prompt_uids(partition_id, sampleable_keys - last, batch_size)
            more, *_ = super()._select_prompt_uids(partition_id, sampleable_keys & last, batch_size - len(picked))
            return [*picked, *more], *snapshots

        def _sync_metadata_from_transfer_queue(self):
            super()._sync_metadata_from_transfer_queue()
            failed, file = sum(map(len, self.failure_keys.values())), self.error_file
            if failed:
                why = file.read_text(encoding="utf-8") if file.is_file() else "its log stands above"
                raise RuntimeError(f"got {failed} prompts whose rollout or reward failed; the run ends here: {why}")

    return StrictReplayBuffer


def own_of(kind: str, job: Path, spec: str) -> tuple:
    """(An estimator or loss of the user's own; the run's settings, which it takes as config)."""
    settings = json.loads((job / "settings.json").read_text(encoding="utf-8"))["settings"]
    return own_function(kind, spec), SimpleNamespace(**settings)


def register_estimators(job: Path, spec: str = "") -> None:
    """Put our estimators that verl lacks, and FILE.py:function of the job, into its registry."""
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

    def registered(name, advantages, config=None):
        def estimate(token_level_rewards, response_mask, index, **_):
            scores = token_level_rewards.sum(-1)
            groups = torch.as_tensor(np.unique(index, return_inverse=True)[1], device=scores.device)
            known = {"rewards": token_level_rewards, "mask": response_mask.to(scores.dtype), "config": config}
            result = advantages(scores=scores, groups=groups, **known)
            result = (result if result.dim() == 2 else result[:, None]) * response_mask
            return result, result

        if name not in ADV_ESTIMATOR_REGISTRY:  # verl loads this file once for each of its uses
            register_adv_est(name)(estimate)

    registered("gpg_ours", gpg_advantages)
    registered("maxrl_ours", maxrl_advantages)
    if spec:
        registered(OWN_NAME, *own_of("advantage", job, spec))


def register_loss(job: Path) -> None:
    """Put FILE.py:function of the job into verl's registry of policy losses; verl_own_loss.py calls this."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, agg_loss, register_policy_loss

    function, settings = own_of("loss", job, job_settings(job)["own"]["loss"])

    def policy_loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights=None):
        mask = response_mask.to(log_prob.dtype)
        known = {"logprobs": log_prob, "old_logprobs": old_log_prob, "advantages": advantages, "mask": mask}
        losses, clipped = function(**known, config=settings)
        losses = losses if rollout_is_weights is None else losses * rollout_is_weights
        loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)

        def mean(values) -> float:
            return ((values.detach() * mask).sum() / mask.sum().clamp(min=1)).item()

        return loss, {"actor/pg_clipfrac": mean(clipped), "actor/ppo_kl": mean(old_log_prob - log_prob)}

    if OWN_NAME not in POLICY_LOSS_REGISTRY:
        register_policy_loss(OWN_NAME)(policy_loss)


class Player:
    """Plays conversations that come one at a time; what blocks runs in threads, never in the event loop.

    As in our trainers, one thread begins all waiting conversations together, and one scores all that have ended. `job`
    is what `job_settings` returns.
    """

    def __init__(self, job: dict, tokenizer, end_ids: list[int], template: dict | None = None):
        environment = job["environment"]
        environments = load_environments(environment["file"])
        for kind in environments.kinds.values():
            kind.tools = environment["tools"][kind.name]
        bridge = TurnBridge(copy.deepcopy(tokenizer), end_ids, template)  # verl goes on using its own
        self.setup = PlaySetup(environments, bridge, environment["form"], PlayLimits(**environment["limits"]))
        self.reward = Reward(job["rewards"], CallLimits(*job["reward_limits"]))
        self.columns = job["columns"]
        self.beginning = Gathering(lambda rows: begin(rows, self.setup), "begin")
        self.scoring = Gathering(self.score_all, "score")
        self.turns = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="turn")
        sys.setswitchinterval(SHORT_INTERVAL)  # jobs of many conversations begin and end all the time

    def row(self, given: dict) -> dict:
        """A row of verl's data as `play` takes it."""
        info, known = given["extra_info"], row_columns(given)
        return {
            "prompt": [dict(message) for message in given["raw_prompt"]],
            "columns": {name: known[name] for name in self.columns if name in known},
            "place": f"row {info['index'] + 1} of the {info['split']} data",
        }

    def score_all(self, ended: list[tuple[dict, Conversation]]) -> list[dict]:
        rows, conversations = zip(*ended, strict=True)
        score_all([*conversations], self.setup.limits)
        rows = [row | {"columns": dict.fromkeys(self.columns) | row["columns"]} for row in rows]
        return score_talks(self.setup, rows, [*conversations], self.reward)

    async def play(self, row: dict, sample) -> tuple[Conversation, dict]:
        """Play one conversation; `sample` is async, (ids so far) -> (answer's ids, log-probs)."""
        conversation, turns = await asyncio.wrap_future(self.beginning.submit(row)), self.setup.limits.turns
        for turn in range(turns):
            sampled, last = [await sample(conversation.ids)], turn == turns - 1
            step = functools.partial(take_turn, [conversation], sampled, last, self.setup)
            await asyncio.wrap_future(self.turns.submit(step))
            if conversation.ended_by:
                break
        return conversation, await asyncio.wrap_future(self.scoring.submit((row, conversation)))

    def scores(self, conversation: Conversation, values: dict, penalties: dict) -> tuple[float, dict]:
        """(what the conversation is worth, what verl logs of it); a penalty for length looks at its longest answer."""
        weights = score_weights(self.reward, values)
        score = sum(weights[name] * value for name, value in values.items() if value is not None)
        answers = [conversation.response_ids[start:end] for start, end in conversation.spans]
        cut_off = not all(map(self.setup.bridge.ends, answers))
        share = penalties.get("overlong_share", 0)
        penalty = overlong_penalty(max(map(len, answers)), self.setup.limits.answer_tokens, share)
        penalty += penalties.get("missing_eos_penalty", 0) * cut_off
        return score - penalty, named_scores(score, values) | play_metrics([conversation])


class Sampler:
    """Asks verl's servers for the answers of one conversation, and keeps what they tell beside tokens."""

    def __init__(self, server, sampling: dict, limits: PlayLimits, request: dict):
        self.server, self.request = server, request
        self.sampling = {**sampling, "logprobs": True, "max_tokens": limits.answer_tokens}
        self.fields, self.seconds = {}, 0.0

    async def __call__(self, ids: list[int]) -> tuple[list[int], list[float]]:
        start = time.perf_counter()
        output = await self.server.generate(prompt_ids=ids, sampling_params=dict(self.sampling), **self.request)
        self.seconds += time.perf_counter() - start
        newest = {name: value for name, value in output.extra_fields.items() if name == "max_global_steps"}
        # the weights' version of the first answer, and of the last
        self.fields = {**output.extra_fields, **self.fields, **newest}
        return output.token_ids, output.log_probs


def environment_loop(job: Path):
    """The class EnvironmentLoop, for verl; verl_environment.py calls this."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
    from verl.utils.rollout_trace import rollout_trace_op

    settings, players = job_settings(job), []  # a player for a process
    load_environments(settings["environment"]["file"])  # its errors are best told at the start

    class EnvironmentLoop(AgentLoopBase):
        """One conversation with an environment; its tokens are those that were sampled, and those between turns."""

        def player(self) -> Player:
            if not players:
                ends = end_ids_of(self.config.actor_rollout_ref.model.path, self.tokenizer)
                players.append(Player(settings, self.tokenizer, ends, dict(self.apply_chat_template_kwargs or {})))
            return players[0]

        @rollout_trace_op
        async def run(self, sampling_params, priority: int = 0, **row):
            try:
                player = self.player()
                request = {"request_id": uuid4().hex, "priority": int(priority)}
                sample = Sampler(self.server_manager, sampling_params, player.setup.limits, request)
                conversation, values = await player.play(player.row(row), sample)
                score, logged = player.scores(conversation, values, self.config.reward.get("reward_kwargs") or {})
            except UserError as error:  # a plain error: Ray has to carry it to processes that do not know our classes
                failure = REWARD_FAILED if isinstance(error, RewardError) else ENVIRONMENT_FAILED
                tell_failure(f"{failure}: {error}", settings["error_file"])
                raise RuntimeError(f"{failure}: {error}") from None
            return AgentLoopOutput(
                prompt_ids=conversation.prompt_ids,
                response_ids=conversation.response_ids,
                response_mask=conversation.response_mask,
                response_logprobs=conversation.rollout_logprobs,
                reward_score=exact_in_means(score, self.rollout_config.n),
                num_turns=2 * len(conversation.spans),
                metrics={"generate_sequences": sample.seconds, "tool_calls": conversation.seconds},
                extra_fields={**sample.fields, "turn_scores": [], "tool_rewards": [], "reward_extra_info": logged},
            )

    return EnvironmentLoop


# -------------------------------------------------------------------- overrides (src/programs/verl_train/overrides.py)

OPTIM = f"{ACTOR}.optim"
ATTENTION = f"{MODEL}.override_config.attn_implementation"
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # our precision -> the samplers'
POLICY_LOSS = f"{ACTOR}.policy_loss"
COMPUTE = "mixed_precision.param_dtype"  # below a part that FSDP shards
# keys that verl reads and its configuration files leave out
ADDED = {
    ATTENTION,
    "reward.reward_kwargs.missing_eos_penalty",
    "reward.reward_kwargs.overlong_share",
    "ray_kwargs.ray_init.address",
    "data.apply_chat_template_kwargs",  # there, and empty: `+` lets it take names
    *(f"{prefix}.override_optimizer_config" for prefix in (OPTIM, "critic.optim")),  # there, and null
    "critic.ppo_infer_max_token_len_per_gpu",  # the one that the default trainer reads, for updates too
}


@dataclass(frozen=True)
class Override:
    """One Hydra override and the setting, or the line of a file, that it comes from."""

    key: str
    value: object
    source: str
    is_written: bool = False  # by the user, in Hydra's grammar; without a value it is ~KEY

    def text(self) -> str:
        """KEY=VALUE in Hydra's grammar; `+` where verl's configuration has no such key."""
        if self.is_written:
            return self.key if self.value is None else f"{self.key}={self.value}"
        is_added = self.key in ADDED or self.key.startswith(f"{KWARGS}.") or self.key.endswith(COMPUTE)
        return f"{'+' if is_added else ''}{self.key}={hydra_value(self.value)}"


def hydra_value(value) -> str:
    """A value in Hydra's override grammar; text that could be read as something else is quoted."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "True", False: "False"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{hydra_value(item)}' for key, item in value.items())}}}"
    words = ("null", "true", "false", "nan", "inf")
    if re.fullmatch(r"[A-Za-z_/][\w./-]*", value, re.ASCII) and value.lower() not in words:
        return value
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", value)  # Hydra undoubles backslashes before a quote only
    return "'" + escaped.replace("'", "\\'") + "'"


def name_findings(overrides: list[Override]) -> list[tuple[Override, str]] | None:
    """Overrides of keys that verl's configuration does not have, or has where `+` adds; None for an unknown engine.

    Hydra's KEY=VALUE and ~KEY need an existing key, +KEY=VALUE a new one (or a dictionary), ++KEY=VALUE takes either.
    Values, choices of groups (with @ or /) and hydra.* are not checked.
    """
    engines = [str(o.value) for o in overrides if o.key == "model_engine"] or ["dp"]
    known, findings = known_names(engines[-1]) if NAMES_FILE.is_file() else set(), []
    if not known:
        return None
    for override in overrides:
        key, _, value = override.text().partition("=")
        bare = key.lstrip("+~")
        if key.startswith("++") or bare.startswith("hydra.") or "@" in bare or "/" in bare:
            continue
        got = f"key: got {override.text()} ({override.source}), a key that verl {VERL}"
        if key.startswith("+") and bare in known and not value.lstrip("'\"").startswith("{"):
            findings.append((override, f"{got} has; expected it without the +"))
        if not key.startswith("+") and bare not in known:
            near = suggest(bare, sorted(known)) or "; expected a key of verl; a new key takes a +"
            near = "; try model_engine=megatron" if ".megatron." in bare and engines[-1] == "dp" else near
            findings.append((override, f"{got} does not have{near}"))
    return findings


Rows = Iterator[tuple[str, str, object]]  # (the setting that it comes from, verl's key, its value)


@dataclass
class Layout:
    """What the overrides need beside the settings: where things lie, and what was found out about them."""

    folder: str  # of train.parquet and verl_reward.py
    output: str  # checkpoints, samples and logs; absolute
    template: str | None  # chat template for data or models without one
    held_out: bool
    parameters: float | None
    columns: list[str]  # what reward functions get, beside prompts and completions
    rows: int = 0
    cpus: int = 1  # of a Ray of its own

    def file(self, name: str) -> str:
        return str(Path(self.folder) / name)


def make_overrides(config: Config, job: Layout) -> list[Override]:
    """Every override of the run, the user's own last; each key once."""
    parts = (data_rows, rollout_rows, algorithm_rows, loss_rows, reward_rows, critic_rows, engine_rows, trainer_rows)
    rows = [row for part in parts for row in part(config, job)]
    overrides = {key: Override(key, value, source) for source, key, value in rows}
    for text in config.override:
        sign, key, value = split_override(text)
        overrides.pop(key, None)
        overrides[key] = Override(sign + key, value, "override", is_written=True)
    return list(overrides.values())


def data_rows(c: Config, job: Layout) -> Rows:
    prompts, train = c.batch_size // c.group_size, job.file("train.parquet")
    # verl starts no epoch of fewer rows than a step has prompts; a folder that stands alone lists them as often
    times = math.ceil(prompts / job.rows) if c.export and job.rows else 1
    yield "data", "data.train_files", [train] * times if times > 1 else train
    if job.template is not None:
        yield "data", f"{MODEL}.custom_chat_template", job.template
    yield "eval_data", "data.val_files", train if c.export and not job.held_out else job.file("val.parquet")
    if not job.held_out:
        yield "eval_data", "data.val_max_samples", 1
    yield "prompt_column", "data.prompt_key", "prompt"
    if switches := template_settings(c):
        yield "chat_template_kwargs", "data.apply_chat_template_kwargs", switches
    for key in ("data.seed", f"{ACTOR}.data_loader_seed", "critic.data_loader_seed", f"{ROLLOUT}.seed", f"{FSDP}.seed"):
        yield "seed", key, c.seed
    yield "batch_size", "data.train_batch_size", prompts
    yield "batch_size", f"{ACTOR}.ppo_mini_batch_size", prompts // c.minibatches
    yield "max_prompt_tokens", "data.max_prompt_length", c.max_prompt_tokens
    yield "max_prompt_tokens", "data.filter_overlong_prompts", True
    if c.environment:  # a bound that is never met: the loop ends conversations, and bounds each answer
        yield "max_conversation_tokens", "data.max_response_length", c.conversation_tokens
        yield "environment", f"{ROLLOUT}.agent.default_agent_loop", "environment"
        yield "environment", f"{ROLLOUT}.agent.agent_loop_config_path", job.file("verl_environment.yaml")
    else:
        yield "max_new_tokens", "data.max_response_length", c.max_new_tokens


def rollout_rows(c: Config, job: Layout) -> Rows:
    yield "verl_rollout", f"{ROLLOUT}.name", c.verl_rollout
    yield "group_size", f"{ROLLOUT}.n", c.group_size
    yield "temperature", f"{ROLLOUT}.temperature", c.temperature
    # the whole distribution: a truncated sampler is not the policy whose log-probs the ratio compares
    yield "temperature", f"{ROLLOUT}.top_p", 1.0
    yield "temperature", f"{ROLLOUT}.top_k", -1
    yield "vllm_memory", f"{ROLLOUT}.gpu_memory_utilization", c.vllm_memory
    yield "rollout_tensor_parallel", f"{ROLLOUT}.tensor_model_parallel_size", c.rollout_tensor_parallel
    yield "precision", f"{ROLLOUT}.dtype", DTYPES[c.precision]
    if c.lora_rank:  # adapters are sent, the base is not
        yield "lora_rank", f"{ROLLOUT}.load_format", "safetensors"


def algorithm_rows(c: Config, job: Layout) -> Rows:
    """Advantages, KL, and the correction for a sampler that is not the trainer's policy."""
    in_reward, in_loss = (c.kl_coef > 0 and c.kl_in == place for place in ("reward", "loss"))
    yield "advantage", "algorithm.adv_estimator", ADVANTAGES.get(c.advantage, OWN_NAME)
    yield "advantage", "critic.enable", c.advantage == "gae"
    if c.advantage in ("grpo", "mean"):
        yield "advantage", "algorithm.norm_adv_by_std_in_grpo", c.advantage == "grpo"
    yield "gamma", "algorithm.gamma", c.gamma
    yield "gae_lambda", "algorithm.lam", c.gae_lambda
    yield "kl_coef", "algorithm.use_kl_in_reward", in_reward
    yield "kl_coef", f"{ACTOR}.use_kl_loss", in_loss
    if in_reward:
        yield "kl_coef", "algorithm.kl_ctrl.kl_coef", c.kl_coef
        yield "kl_estimator", "algorithm.kl_penalty", c.kl_estimator
    if in_loss:
        yield "kl_coef", f"{ACTOR}.kl_loss_coef", c.kl_coef
        yield "kl_estimator", f"{ACTOR}.kl_loss_type", c.kl_estimator.replace("k3_ratio", "k3+")
    # auto: the sampler is vLLM or SGLang, in another precision than the trainer
    level = {"none": None, "seq_mask": "sequence"}.get(c.mismatch, "token")
    yield "mismatch", f"{CORRECTION}.rollout_is", level
    if c.mismatch in ("icepop", "seq_mask"):
        yield "mismatch_high", f"{CORRECTION}.rollout_is_threshold", f"{c.mismatch_low}_{c.mismatch_high}"
    elif level:
        yield "mismatch_high", f"{CORRECTION}.rollout_is_threshold", c.mismatch_high


def loss_rows(c: Config, job: Layout) -> Rows:
    """The policy loss, its bounds, its aggregation, and the passes over a batch."""
    yield "loss", f"{POLICY_LOSS}.loss_mode", LOSSES.get(c.loss, OWN_NAME)
    if c.loss not in LOSSES:
        yield "loss", f"{MODEL}.external_lib", OWN_LOSS_MODULE
    yield "aggregation", f"{ACTOR}.loss_agg_mode", AGGREGATIONS[c.aggregation]
    yield "aggregation", "critic.loss_agg_mode", "token-mean"
    # left out, verl takes a micro-batch's longest
    if c.aggregation == "seq_mean_token_sum_norm":
        yield "max_new_tokens", f"{ACTOR}.loss_scale_factor", c.max_new_tokens
    if c.aggregation == "fixed_length":
        yield "norm_length", f"{ACTOR}.loss_scale_factor", c.norm_length
    yield "ppo_epochs", f"{ACTOR}.ppo_epochs", c.ppo_epochs
    yield "ppo_epochs", f"{ACTOR}.shuffle", True
    yield "clip_eps_low", f"{ACTOR}.clip_ratio_low", c.clip_eps_low
    yield "clip_eps_high", f"{ACTOR}.clip_ratio_high", c.clip_eps_high
    yield "dual_clip", f"{ACTOR}.clip_ratio_c", c.dual_clip or OFF
    if c.loss == "sapo":
        yield "sapo_tau_pos", f"{ACTOR}.tau_pos", c.sapo_tau_pos
        yield "sapo_tau_neg", f"{ACTOR}.tau_neg", c.sapo_tau_neg
    if c.loss in ("clip_cov", "kl_cov"):
        yield "cov_frac", f"{POLICY_LOSS}.{c.loss}_ratio", c.cov_frac
    if c.loss == "clip_cov":
        yield "cov_low", f"{POLICY_LOSS}.clip_cov_lb", c.cov_low
        yield "cov_high", f"{POLICY_LOSS}.clip_cov_ub", c.cov_high
    if c.loss == "kl_cov":
        yield "kl_cov_coef", f"{POLICY_LOSS}.ppo_kl_coef", c.kl_cov_coef
    yield "entropy_coef", f"{ACTOR}.entropy_coeff", c.entropy_coef


def reward_rows(c: Config, job: Layout) -> Rows:
    """The reward, what is taken from it, and the guard that ends a run when it fails."""
    if c.export:  # a function that needs nothing of ours
        yield "reward", "reward.custom_reward_function.path", job.file("verl_reward.py")
        yield "reward", "reward.custom_reward_function.name", "compute_score"
        return
    hooks = job.file("verl_hooks.py")
    yield "reward", "reward.reward_manager.source", "importlib"
    yield "reward", "reward.reward_manager.name", "TokenRewardManager"
    yield "reward", "reward.reward_manager.module.path", hooks
    yield "reward", f"{SAMPLER}.path", hooks
    yield "reward", f"{SAMPLER}.name", "StrictReplayBuffer"
    yield "reward", f"{KWARGS}.error_file", str(Path(job.output) / REWARD_ERROR)
    yield "missing_eos_penalty", "reward.reward_kwargs.missing_eos_penalty", c.missing_eos_penalty
    yield "overlong_share", "reward.reward_kwargs.overlong_share", c.overlong_share
    if c.dynamic_sampling:  # by the score before length penalties, as ours
        yield "dynamic_sampling", "algorithm.filter_groups.enable", True
        yield "dynamic_sampling", "algorithm.filter_groups.metric", "score"
        yield "dynamic_sampling", f"{KWARGS}.filter_groups_metric", "score"
        yield "batch_size", f"{KWARGS}.train_batch_size", c.batch_size // c.group_size
        yield "max_refills", f"{KWARGS}.max_refills", c.max_refills


def critic_rows(c: Config, job: Layout) -> Rows:
    if c.advantage != "gae":
        return
    yield "critic_model", "critic.model.path", model_path(c.critic_model or c.model)
    yield "model", "critic.model.tokenizer_path", model_path(c.model)
    # verl's actor trains from the step of this number on, and its first step is 1
    yield "critic_warmup_steps", "trainer.critic_warmup", c.critic_warmup_steps + 1 if c.critic_warmup_steps else 0
    yield "value_clip", "critic.cliprange_value", c.value_clip or OFF
    # Adam does not see the scale of a loss of its own, gradient clipping does
    yield "vf_coef", "critic.optim.clip_grad", c.max_grad_norm / c.vf_coef
    yield "gradient_checkpointing", "critic.model.enable_gradient_checkpointing", c.gradient_checkpointing
    yield "micro_batch_tokens", "critic.ppo_max_token_len_per_gpu", c.micro_batch_tokens
    yield "micro_batch_tokens", "critic.ppo_infer_max_token_len_per_gpu", c.micro_batch_tokens


def engine_rows(c: Config, job: Layout) -> Rows:
    """Who trains: adapters, optimizers, sharding, precision, micro-batches, offload."""
    critic = c.advantage == "gae"
    trained = [FSDP, "critic.fsdp"] if critic else [FSDP]
    yield "model", f"{MODEL}.path", model_path(c.model)
    if c.precision == "fp32":  # which flash attention does not compute
        yield "precision", ATTENTION, "sdpa"
        yield "precision", f"{MODEL}.use_remove_padding", False
    for model in ([MODEL, "critic.model"] if critic else [MODEL]) if c.lora_rank else []:
        yield "lora_rank", f"{model}.lora_rank", c.lora_rank
        yield "lora_rank", f"{model}.target_modules", "all-linear"
        yield "lora_alpha", f"{model}.lora_alpha", int(c.lora_alpha or 2 * c.lora_rank)
    yield "max_grad_norm", f"{OPTIM}.clip_grad", c.max_grad_norm
    rates = learning_rates(c, job.parameters or 1e9)
    for name, optimizer, rate in zip(("lr", "critic_lr"), (OPTIM, "critic.optim")[: 1 + critic], rates, strict=False):
        yield name, f"{optimizer}.lr", rate
        yield "lr_schedule", f"{optimizer}.lr_scheduler_type", c.lr_schedule
        yield "warmup_steps", f"{optimizer}.lr_warmup_steps", c.warmup_steps
        yield "weight_decay", f"{optimizer}.weight_decay", c.weight_decay
        yield "adam_beta2", f"{optimizer}.betas", [0.9, c.adam_beta2]
        yield "adam_eps", f"{optimizer}.override_optimizer_config", {"eps": c.adam_eps}
    yield "gpus_per_node", f"{ACTOR}.strategy", "fsdp2"
    yield "gpus_per_node", "critic.strategy", "fsdp2"
    frozen = [f"{REF}.fsdp_config"] if c.kl_coef and not c.lora_rank else []  # with LoRA it is the actor
    for part in trained + frozen:
        yield "precision", f"{part}.{COMPUTE}", c.precision  # FSDP does not read its `dtype`
        # adapters, gradients and Adam have the dtype of the weights; frozen ones need no master copy
        yield "precision", f"{part}.{WEIGHT_DTYPE}", "fp32" if part in trained else c.precision
        yield "sequence_parallel", f"{part}.ulysses_sequence_parallel_size", c.sequence_parallel
    yield "micro_batch_tokens", f"{ACTOR}.use_dynamic_bsz", True
    for key in (f"{ACTOR}.ppo", f"{ROLLOUT}.log_prob", *[f"{REF}.log_prob"] * len(frozen)):
        yield "micro_batch_tokens", f"{key}_max_token_len_per_gpu", c.micro_batch_tokens
    yield "gradient_checkpointing", f"{MODEL}.enable_gradient_checkpointing", c.gradient_checkpointing
    for part in trained:
        yield "offload", f"{part}.param_offload", c.offload == "all"
        yield "offload", f"{part}.optimizer_offload", c.offload != "none"


def trainer_rows(c: Config, job: Layout) -> Rows:
    """Steps, evaluation, checkpoints, logs, machines."""
    output, gpus = Path(job.output), c.nodes * c.gpus_per_node
    # an epoch has a step at least, so epochs never end before the steps do; verl saves at the last step only
    yield "steps", "trainer.total_training_steps", c.steps
    yield "steps", "trainer.total_epochs", c.steps
    yield "eval_every", "trainer.test_freq", (c.eval_every or c.steps) if job.held_out else -1
    yield "eval_every", "trainer.val_before_train", job.held_out
    contents = ["model", "optimizer", "extra"]
    if not c.lora_rank:
        contents.append("hf_model")  # with adapters it writes wrong names
    yield "save_every", "trainer.save_freq", c.save_every or c.steps
    yield "save_every", f"{ACTOR}.checkpoint.save_contents", contents
    yield "keep_checkpoints", "trainer.max_actor_ckpt_to_keep", c.keep_checkpoints
    yield "keep_checkpoints", "trainer.max_critic_ckpt_to_keep", c.keep_checkpoints
    # a script that is written may be started again; else the folder is new, or the user resumes
    yield "resume", "trainer.resume_mode", "auto" if c.resume or c.print else "disable"
    yield "report_to", "trainer.logger", ["console", "file", *c.report_to]
    yield "output_dir", "trainer.default_local_dir", str(output / "checkpoints")
    yield "output_dir", "trainer.project_name", "verl_train"
    yield "output_dir", "trainer.experiment_name", output.name
    yield "output_dir", "hydra.run.dir", str(output / "hydra")
    if c.sample_every:
        yield "output_dir", "trainer.rollout_data_dir", str(output / "samples")
    if c.sample_every and job.held_out:
        yield "output_dir", "trainer.validation_data_dir", str(output / "held_out")
    yield "nodes", "trainer.nnodes", c.nodes
    yield "gpus_per_node", "trainer.n_gpus_per_node", c.gpus_per_node
    # a Ray of its own, also where one runs already, or RAY_ADDRESS names one
    yield "cpus", "ray_kwargs.ray_init.num_cpus", max(job.cpus, cpus_needed(gpus, 1))
    yield "cpus", "ray_kwargs.ray_init.address", "local"
    units = 8 if job.cpus >= cpus_needed(gpus, 8) else 1
    yield "cpus", "transfer_queue.backend.SimpleStorage.num_data_storage_units", units


def cpus_needed(gpus: int, storage_units: int) -> int:
    """CPUs that Ray has to promise before a run begins: with fewer it hangs without a message.

    The task runner and the queue's controller take one each, a storage unit one, and the place of a GPU three.
    """
    return 2 + storage_units + 3 * gpus


def model_path(model: str) -> str:
    """A model as any folder's process finds it."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


# ------------------------------------------------------------------ job folder (src/programs/verl_train/job_folder.py)

OUR_TRAINERS = "try ppo_train.py or grpo_train.py, which call a reward with whole groups"
TRIAL = r'''"""Load a job's files, try its rewards on rows of its data: VERL_REWARD.py EXPORT, "" for none."""

import json
import runpy
import sys
from pathlib import Path

file, export = sys.argv[1:]
module = runpy.run_path(file)
job = module["JOB"]
if environment := job.job_settings(module["HERE"])["environment"]:
    job.load_environments(environment["file"])
print("\nLOADED", flush=True)
tried = job.tried_scores(module, Path(file).with_name("train.parquet"), export)
print("\nTRIAL " + json.dumps(tried))
'''
JOB_TRIAL_SECONDS = 300
TRIED_ROWS, SCORING_SECONDS = 50, 2.0  # no more rows, and none begun after that time: a function may be slow, or paid
MODULE = '''\
"""{title}. Written by verl_train.py; loads its copy beside this file."""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "verl_train_job"
if NAME not in sys.modules:
    spec = importlib.util.spec_from_file_location(NAME, HERE / "verl_train.py")
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])
JOB = sys.modules[NAME]
'''
MODULES = {  # what verl loads of a job: its title, and what it has of verl_train.py
    "verl_reward": ("The rewards of the run", "batcher = JOB.RewardBatcher(JOB.job_settings(HERE))"),
    "verl_hooks": (
        "The reward manager and the replay buffer of the run",
        "TokenRewardManager, StrictReplayBuffer = JOB.hooks(HERE)",
    ),
    OWN_LOSS_MODULE: ("The policy loss of the run", "JOB.register_loss(HERE)"),
    "verl_environment": ("The agent loop of the run", "EnvironmentLoop = JOB.environment_loop(HERE)"),
}
LOOP = """\
- name: environment
  _target_: verl_environment.EnvironmentLoop  # verl_environment.py lies beside this file
"""


def imported_files(path: Path) -> list[Path]:
    """The Python files beside a file that it imports, directly or through each other; itself comes first."""
    folder, files, waiting = path.parent, [], [path]
    while waiting:
        file = waiting.pop()
        if file in files:
            continue
        files.append(file)
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError) as error:
            raise UserError(f"got {file}, which cannot be read ({error}); expected Python source in UTF-8") from None
        for base in imported_places(tree, folder, [*file.relative_to(folder).parts[:-1]]):
            waiting += [f for f in (base.with_name(f"{base.name}.py"), base / "__init__.py") if f.is_file()]
    return files


def imported_places(tree: ast.Module, folder: Path, package: list[str]) -> list[Path]:
    """Where in a folder the modules lie that a source may import, each after its packages."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names += [base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)]  # a name may be a module
    parts = [name.split(".") for name in names if name and name.split(".")[0] not in sys.stdlib_module_names]
    return sorted({folder.joinpath(*words[: i + 1]) for words in parts for i in range(len(words))})


def file_of(spec: str) -> Path:
    """The file of FILE.py:function*weight."""
    return Path(spec.partition("*")[0].rpartition(":")[0]).resolve()


def copied(folder: Path, name: str, spec: str, ship: list[str]) -> str:
    """FILE.py:function as a job has it: its file lies in the folder `name`, with what it imports, and with `ship`."""
    path, place = file_of(spec), folder / name
    if not place.is_dir():
        place.mkdir()
        for other in map(Path, ship):  # a user's own file of a name wins
            got = f"got --ship {str(other)!r}, which is not a file"
            need(other.is_file(), f"{got}; expected a file that a reward or environment needs")
            shutil.copyfile(other, place / other.name)
    for other in imported_files(path):
        copy_to = place / other.relative_to(path.parent)
        copy_to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(other, copy_to)
    return f"{JOB_FOLDER}/{name}/{path.name}:{spec.rpartition(':')[2]}"


def write_modules(folder: Path, specs, columns: list[str], ship=(), functions=None, environment=None, **limits) -> Path:
    """Write what verl loads of a job, this file, and the user's files with what they need; returns verl_reward.py.

    A file is copied with the files beside it that it imports, and with `ship`; nothing else leaves its folder.

    Args:
        specs: rewards, FILE.py:function*weight.
        functions: {"advantage" or "loss": FILE.py:function}; other values are names that verl has.
        environment: {"file": FILE.py:NAME, "tools": {kind: schemas, as the launcher's transformers made them},
            "limits": of PlayLimits, "form": of tool calls}.
        limits: `reward_limits` and `error_file`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(__file__, folder / "verl_train.py")
    for old in [*folder.glob("rewards_*"), *folder.glob("own_*"), folder / "environment"]:
        shutil.rmtree(old, ignore_errors=True)
    places, own_functions = {}, {kind: spec for kind, spec in (functions or {}).items() if is_own(spec)}
    for spec in specs:
        load_rewards(spec)  # its errors are best told here
        places.setdefault(file_of(spec).parent, f"rewards_{len(places)}")
    job = {"columns": columns, "reward_limits": (), "error_file": "", "environment": None} | limits
    job["rewards"] = [copied(folder, places[file_of(spec).parent], spec, ship) for spec in specs]
    job["own"] = {kind: copied(folder, f"own_{kind}", spec, ship) for kind, spec in own_functions.items()}
    needed = {OWN_LOSS_MODULE: "loss" in own_functions, "verl_environment": environment}
    if environment:
        file = copied(folder, "environment", environment["file"], ship)
        job["environment"] = environment | {"file": file}
        (folder / "verl_environment.yaml").write_text(LOOP, encoding="utf-8")
    (folder / JOB_FILE).write_text(json.dumps(job, indent=1), encoding="utf-8")
    for name, (title, code) in MODULES.items():
        (folder / f"{name}.py").unlink(missing_ok=True)
        if needed.get(name, True):
            (folder / f"{name}.py").write_text(f"{with_values(MODULE, title=title)}{code}\n", encoding="utf-8")
    return folder / "verl_reward.py"


def tried_scores(module: dict, file: Path, export: str = "") -> dict:
    """Score rows of a job's data: the completions of a row in one batch, and one by one, as verl calls a reward.

    Args:
        module: the names of a job's verl_reward.py.
        export: a verl_reward.py of --export, which then scores them one by one.

    Returns:
        {"rows", "completions", "scores" seen, "raised": the first error, "unlike": {function: [scores of a batch, those
        one by one]} where they differ}. A function that differs from itself on one batch shows nothing.
    """
    batcher = module["batcher"]
    batcher.reward.silent = True  # that nothing applies to any completion here is no news
    trial = {"rows": 0, "completions": 0, "scores": [], "raised": "", "unlike": {}}
    score = runpy.run_path(export)["compute_score"] if export else None
    rows = parquet_rows(file)[:TRIED_ROWS] if batcher.reward.functions and file.is_file() else []
    started = time.monotonic()
    for number, row in enumerate(rows):
        if number and time.monotonic() > started + SCORING_SECONDS:
            break
        truth, info = row["reward_model"]["ground_truth"], row["extra_info"]
        texts, asked = trial_texts(str(truth)[:200] or "yes"), batcher.row(row | {"raw_prompt": row["prompt"]})
        batch = [(asked, text, list(range(len(text.split())))) for text in texts]
        try:
            first, second = (batcher.score_all(batch) for _ in range(2))
            if score:
                alone = [score(row["data_source"], text, truth, info) for text in texts]
            else:
                alone = [batcher.score_all([one])[0] for one in batch]
        except Exception as error:  # what the functions raise is the user's
            reason = str(error).removeprefix(f"{REWARD_FAILED}: ")
            trial["raised"] = trial["raised"] or f"row {number + 1} of the data: {reason}"
            continue
        trial["rows"], trial["completions"] = trial["rows"] + 1, trial["completions"] + len(texts)
        trial["scores"] = sorted({*trial["scores"], *(round(scores["score"], 4) for scores in alone)})
        for name in (name for name in alone[0] if name != "acc"):
            together, again, single = ([scores[name] for scores in each] for each in (first, second, alone))
            if near(together, again) and not near(together, single):
                trial["unlike"].setdefault(name, [together, single])
    return trial


def near(first: list[float], second: list[float]) -> bool:
    """Whether two lists of scores agree, but for what batches change in a reward model's rounding."""
    return all(math.isclose(a, b, rel_tol=0.01, abs_tol=0.01) for a, b in zip(first, second, strict=True))


def try_job(folder: Path, export: str = "") -> tuple[list[str], dict]:
    """(What keeps a job's copies from loading, or a reward from meaning in verl what it means here; `tried_scores`).

    As in the run, the original files are not at hand.
    """
    command = [sys.executable, "-c", TRIAL, str(folder / "verl_reward.py"), export]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=JOB_TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"note: the reward took over {JOB_TRIAL_SECONDS} s for a few completions, so single ones were not tried")
        return [], {}
    lines = done.stdout.splitlines()
    if "LOADED" not in lines:
        kind = "environment" if (folder / "verl_environment.py").is_file() else "reward"
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        got = f"{kind}: its copy for the run does not load: {last}"
        return [f"{got}; expected every file that it imports beside it; try --ship FILE"], {}
    trial = next((json.loads(line.removeprefix("TRIAL ")) for line in lines if line.startswith("TRIAL ")), {})
    unlike = trial.get("unlike", {})
    return [
        f"reward {name}: got scores that depend on the other completions of a batch, or on earlier calls "
        f"({together[:4]} … together, {alone[:4]} … one by one); expected a score for each completion by itself, as "
        f"verl scores them in 8 processes; {OUR_TRAINERS}"
        for name, (together, alone) in unlike.items()
        if name != "score" or len(unlike) == 1
    ], trial


def prepare_job(config: Config, folder: Path | None = None) -> tuple[Layout, list[Override]]:
    """Write the job folder and return the job and its overrides."""
    check_expressible(config)
    check_output(config)
    specs = reward_specs(config)
    output = Path(config.output_dir).resolve()
    folder = folder or output / "job"
    setup = environment_setup(config) if config.environment else None
    rows, columns = job_rows(config, setup, config.data, "train")
    held_out, more = [], []
    if config.hold_out:
        parts = hold_out(config, [task_row(row) | {"row": row} for row in rows])
        rows, held_out = ([task["row"] for task in part] for part in parts)
        held_out = evaluated_rows(config, held_out)
    elif source := held_out_source(config):
        held_out, more = job_rows(config, setup, source, "test")
    tasks, columns = [task_row(row) for row in held_out], list(dict.fromkeys([*columns, *more]))
    mark_trained(config, [task_row(row) for row in rows], tasks)
    prompts = config.batch_size // config.group_size
    few = f"got {len(rows)} rows; expected at least the {prompts} prompts of a step"
    few += "; try more rows, or a smaller --batch_size"
    need(len(rows) >= prompts or config.print or config.export, few)
    if len(rows) < prompts:  # a command may be written before its data is there
        say(f"warning: {few}")
    folder.mkdir(parents=True, exist_ok=True)
    template = chat_template(config.model, rows + held_out, config.chat, config.chat_template)
    write_parquet_file(rows, folder / "train.parquet")
    write_parquet_file(held_out or rows[:1], folder / "val.parquet")  # verl wants one
    write_code(config, folder, setup, columns, "" if config.check else str(output / REWARD_ERROR))
    reward = Reward(specs)
    grouped = ", ".join(name for name, function in reward.functions.items() if getattr(function, "needs_group", False))
    got = f"got reward {grouped}, which compares the completions of a prompt"
    need(not grouped, f"{got}; expected a score for each completion by itself, as verl scores them; {OUR_TRAINERS}")
    given = [*columns, OBJECTS] if setup else columns
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns({"prompt": row["prompt"], "columns": dict.fromkeys(given)})
    job = Layout(
        folder=str(folder),
        output=str(output),
        template=(setup and setup.bridge.chat_template) or template,
        held_out=bool(held_out),
        parameters=count_parameters(config),
        columns=columns,
        rows=len(rows),
        cpus=config.cpus or os.cpu_count() or 1,
    )
    need(
        job.parameters or config.lr, f"got model {config.model!r} of unknown size, which lr 0 depends on; try --lr 1e-6"
    )
    overrides = make_overrides(config, job)
    settings = {"settings": dataclasses.asdict(config), "overrides": [o.text() for o in overrides]}
    settings |= {"held_out_rows": len(held_out), **overlap_metric(tasks)}
    (folder / "settings.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return job, overrides


def write_code(config: Config, folder: Path, setup: PlaySetup | None, columns: list[str], error_file: str) -> None:
    """Write the job's modules, with the user's files that they load."""
    if error_file:
        Path(error_file).unlink(missing_ok=True)
    ours = [BUNDLE / "scripts" / f"{name}.py" for name in ("math_grader", "sandbox")]  # the library looks for them late
    environment = setup and {
        "file": config.environment,
        "tools": {kind.name: kind.tools for kind in setup.environments.kinds.values()},
        "limits": dataclasses.asdict(setup.limits),
        "form": setup.form,
    }
    write_modules(
        folder,
        reward_specs(config),
        columns,
        [*(str(file) for file in ours if file.is_file()), *config.ship],
        {"advantage": config.advantage, "loss": config.loss},
        environment,
        reward_limits=dataclasses.astuple(call_limits(config)),
        error_file=error_file,
    )


def reward_specs(config: Config) -> list[str]:
    """The reward functions of a job; an environment needs none."""
    return [*map(full_spec, config.reward if config.environment else specs_for(config.data, config.reward))]


def job_rows(config: Config, setup: PlaySetup | None, source: str, split: str) -> tuple[list[dict], list[str]]:
    """verl's rows of a file, and the names of their columns; with an environment, those that it can begin with."""
    placed = read_prompts(source, config.prompt_column)
    placed = evaluated_rows(config, placed) if split == "test" else placed
    places, read = [place for place, _ in placed], [row for _, row in placed]
    rows, columns = verl_rows(read, config.prompt_column, split, Path(source).stem, bool(setup), places)
    warn_unread(source, [(row, row[config.prompt_column]) for row in read if config.prompt_column in row])
    for row in rows:
        row["data_source"] = config.data_source or row["data_source"]
    if not setup:
        return rows, columns
    known = []
    for row in rows:
        values = {name: value for name, value in row_columns(row).items() if name in columns}
        known.append({"prompt": row["prompt"], "columns": values, "row": row})
    check_environment_rows(setup.environments, known)  # UserError for one that `reset` refuses
    return [fit["row"] for fit in playable_rows(config, setup, known, source)], columns


def task_row(row: dict) -> dict:
    """What `mark_trained` compares of verl's rows."""
    return {"prompt": row["prompt"], "columns": {k: v for k, v in row["extra_info"].items() if k not in OWN_INFO}}


def check_output(config: Config) -> None:
    """Refuse another run's folder."""
    folder = Path(config.output_dir)
    traces = [*sorted(folder.glob("checkpoints/global_step_*")), *folder.glob("metrics.jsonl")]
    got = f"got output_dir {str(folder)!r}, which holds a run ({', '.join(p.name for p in traces[:3])})"
    advice = "expected a new folder; try --resume to continue, or another --output_dir"
    need(config.resume or config.check or not traces, f"{got}; {advice}")


def environment_setup(config: Config) -> PlaySetup:
    """What conversations are played with; UserError for what cannot be played with this model in verl."""
    tokenizer = open_tokenizer(config)
    environments, _ = load_scored(config)
    check_chat_template(config, tokenizer)
    ends = end_ids_of(config.model, tokenizer)
    need(ends, f"got model {config.model!r} without an end token; expected eos_token_id in its generation config")
    setup = make_play_setup(config, tokenizer, ends, environments)
    need(
        isinstance(setup.form, str),
        "got a model whose tool calls are read by a response template, which verl's transformers (5.10) lacks; "
        f"expected one of {', '.join(CALL_FORMATS)}; try --tool_format NAME",
    )
    check_fits(config, longest_context(config.model))
    return setup


def job_findings(folder: Path) -> list[str]:
    """What is wrong with a job's files in a process of their own; an error of a reward there is a warning."""
    findings, trial = try_job(folder)
    if trial.get("raised"):
        say(f"warning: a reward raised in a trial, which would end verl's run: {trial['raised']}")
    return findings


# -------------------------------------------------------------------------- checks (src/programs/verl_train/checks.py)

RAY_CPUS = "ray_kwargs.ray_init.num_cpus"
COUNTS = (  # keys whose values verl computes with
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.save_freq", "trainer.total_epochs", RAY_CPUS),
    *("data.train_batch_size", "transfer_queue.backend.SimpleStorage.num_data_storage_units"),
)
LINE = re.compile(r"((?:\+\+|\+)?[\w.@/:-]+)=(.*)|(~[\w.@/:-]+)")
SECOND = re.compile(r"[^'\"\[{(]*\s[+~]{0,2}[\w@/-]+\.[\w.@/-]+=.*")  # another KEY=VALUE in a value without quotes


def need_verl() -> None:
    """Raise UserError unless this Python has the verl that this file is written for."""
    import importlib.metadata

    try:
        version = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"got a Python without verl ({sys.executable}); expected verl {VERL}; {INSTALL}") from None
    other = f"got verl {version} in {sys.executable}; expected {VERL}, whose keys are written here; {INSTALL}"
    need(version == VERL, other)


def compose_config(overrides: list[Override]):
    """Compose verl's configuration from overrides: (configuration or None, findings on what Hydra refuses)."""
    import verl
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    folder, got = str(Path(verl.__file__).parent / "trainer" / "config"), "overrides"
    sources = {override.text(): override.source for override in overrides}  # once each: Hydra refuses a second `+`
    try:
        for text, source in sources.items():
            got = f"{text} (from {source})"
            OverridesParser.create().parse_override(text)
        got = "overrides"
        with initialize_config_dir(config_dir=folder, version_base=None):
            return compose("ppo_trainer", overrides=[*sources]), []
    except (HydraException, ValueError) as error:
        return None, [f"override: got {got}, which verl refuses: {' '.join(str(error).split())[:300]}"]


def missing_values(composed) -> list[str]:
    """Findings for keys without a value, or else for counts that are not integers."""
    from omegaconf import OmegaConf

    judge = composed.reward.reward_model.enable  # without a reward model its settings may be missing
    missing = sorted(k for k in OmegaConf.missing_keys(composed) if judge or not k.startswith("reward.reward_model."))
    if missing:
        return [f"missing: got no {key}; expected it, as verl has no default" for key in missing]
    counts = {key: OmegaConf.select(composed, key) for key in COUNTS}
    wrong = {k: n for k, n in counts.items() if not isinstance(n, int) and (n is not None or k != RAY_CPUS)}
    return [f"number: got {key}={value}; expected an integer" for key, value in wrong.items()]


def missing_engine(name: str) -> bool:
    return name in ("vllm", "sglang") and not importlib.util.find_spec(name)


def config_findings(composed) -> list[str]:
    """What verl's own validation says, and what would hang a run or leave it without a checkpoint."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    findings, rollout, trainer = [], composed.actor_rollout_ref.rollout, composed.trainer
    if missing_engine(rollout.name):
        say(f"note: {rollout.name} is not installed here; the run needs it")
    try:
        omega_conf_to_dataclass(rollout)
        validate_config(composed, need_reference_policy(composed), need_critic(composed))
    except Exception as error:  # assertions, and ValueError and TypeError of dataclasses
        if missing_engine(rollout.name) and "vllm version None" in str(error):
            say("note: the LoRA rank is not checked against vLLM, which is not installed here")
        else:
            findings.append(f"validation: verl refuses the configuration: {type(error).__name__}: {error}")
    units, given = composed.transfer_queue.backend.SimpleStorage.num_data_storage_units, composed.ray_kwargs.ray_init
    needed = cpus_needed(trainer.nnodes * trainer.n_gpus_per_node, units)
    if given.num_cpus is not None and given.num_cpus < needed:
        findings.append(f"cpus: got {RAY_CPUS}={given.num_cpus}; expected {needed}, or the run hangs in silence")
    names = {"algorithm.adv_estimator": ADV_ESTIMATOR_REGISTRY, f"{ACTOR}.policy_loss.loss_mode": POLICY_LOSS_REGISTRY}
    own = composed.actor_rollout_ref.model.external_lib or composed.reward.reward_manager.module.path
    for key, known in names.items():
        if (name := OmegaConf.select(composed, key)) not in known and not own:  # a module of one's own may register it
            advice = "try actor_rollout_ref.model.external_lib with a module that registers it"
            findings.append(f"name: got {key}={name}; expected one of {', '.join(known)}; {advice}")
    actor, estimator = composed.actor_rollout_ref.actor, composed.algorithm.adv_estimator
    if rollout.n == 1 and re.match("grpo|rloo|opo|gdpo", str(estimator)):
        got = f"group: got actor_rollout_ref.rollout.n=1 with {estimator}, which compares the samples of a prompt"
        findings.append(f"{got}; expected 2 or more; try 8")
    if actor.ppo_epochs == 1 and actor.ppo_mini_batch_size == composed.data.train_batch_size:
        say("note: with one update per batch the ratio is 1 and no clip acts; a smaller ppo_mini_batch_size makes more")
    if trainer.save_freq <= 0:
        findings.append(f"checkpoint: got trainer.save_freq={trainer.save_freq}, so nothing is saved; try 25")
    return findings


def rows_in_verl(composed, model) -> tuple[dict, object, list[str]]:
    """(Report, rows, findings) of the training data in verl's own data set."""
    from verl.trainer.ppo.utils import create_rl_dataset

    data = composed.data
    files = [data.train_files] if isinstance(data.train_files, str) else [*data.train_files]
    rows = create_rl_dataset(files, data, model.tokenizer, model.processor, is_train=True)
    total = sum(map(parquet_length, files)) if all(name.endswith(".parquet") for name in files) else len(rows)
    report = {"rows": total, "rows that fit": len(rows), "steps in an epoch": len(rows) // data.train_batch_size}
    got = f"data: got {len(rows)} of {total} rows within {data.max_prompt_length} tokens"
    is_few = len(rows) < data.train_batch_size
    got += f"; expected the {data.train_batch_size} of a step"
    if not len(rows):  # verl leaves out those without chat messages
        got += f", with chat messages in {data.prompt_key}; its columns are {', '.join(rows.dataframe.column_names)}"
    return report, rows, [got] if is_few else []


def data_findings(composed, config: Config) -> tuple[dict, list[str]]:
    """(Report, findings) about the training data through verl's own data set."""
    from transformers import AutoTokenizer
    from verl.utils.config import omega_conf_to_dataclass

    model = omega_conf_to_dataclass(composed.actor_rollout_ref.model)
    report, rows, findings = rows_in_verl(composed, model)
    if findings:
        return report, findings
    our_tokenizer = AutoTokenizer.from_pretrained(config.model)
    template = composed.data.get("apply_chat_template_kwargs") or {}
    give_template(our_tokenizer, config.chat_template)
    for i in range(0, len(rows), max(1, len(rows) // 8)):
        messages, is_text = rows[i]["raw_prompt"], bool(rows[i]["extra_info"].get("prompt_is_text"))
        verls = model.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, **template
        )["input_ids"]
        prompt = messages[0]["content"] if is_text and not config.chat else messages
        if [*verls] != [*encode_prompt(our_tokenizer, prompt, **template_settings(config))]:
            got = f"prompt: verl gives row {rows[i]['index']} other token ids than our trainers do"
            return report, [f"{got}; try chat messages"]
    return report, []


def run_check(config: Config) -> int:
    """--check: compose, load and count everything; a JSON report on stdout, exit code 1 with findings."""
    need_verl()
    with tempfile.TemporaryDirectory(prefix="verl_check_") as folder:
        sys.path.insert(0, folder)  # where the run finds a loss of the user's own
        _, overrides = prepare_job(config, folder=Path(folder))
        findings, report = batch_findings(config), {"verl": VERL, "overrides": len(overrides)}
        wrong = name_findings(overrides) or []
        findings += [text for _, text in wrong]
        with contextlib.redirect_stdout(sys.stderr):  # verl prints
            composed, refused = compose_config([o for o in overrides if o not in [override for override, _ in wrong]])
            findings += refused
            if composed is not None and not wrong:
                findings += config_findings(composed)
                report["data"], more = data_findings(composed, config)
                tried, report["reward"] = try_job(Path(folder))
                findings += more + tried
    raised = report.get("reward", {}).get("raised")
    if raised and not config.environment:  # a reward of conversations may read what a single answer lacks
        findings.append(f"reward: in a trial it raised at {raised}; a run would end there")
    return report_findings(report, findings)


def report_findings(report: dict, findings: list[str]) -> int:
    """Print a report with its findings; the exit code is 1 where there are any."""
    tell(json.dumps(report | {"findings": findings}, indent=1, ensure_ascii=False))
    for finding in findings:
        say(f"finding: {finding}")
    return int(bool(findings))


def read_overrides(file: str) -> list[Override]:
    """The overrides of a file: KEY=VALUE or ~KEY per line, as Hydra takes them; `#` begins a comment."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"got --overrides {file}: {error}; expected a text file") from None
    overrides, flags = [], " ".join(line.strip(" \t\\") for line in lines if line.lstrip().startswith("--config-"))
    ways = {"ppo_trainer": "leaving them out", "ppo_megatron_trainer": "model_engine=megatron in their place"}
    config = re.search(r"--config-name[= ]['\"]?([\w-]+)", flags)
    way = ways.get(config and config[1], "the settings of its file in their place")
    need(not flags, f"got {file} with {flags}; expected one KEY=VALUE per line and no flags; try {way}")
    for number, line in enumerate(lines, start=1):
        text = re.sub(r"(^|\s)#[^'\"]*$", "", line).strip()  # in quotes it is text
        match = LINE.fullmatch(text)
        if text and (not match or SECOND.fullmatch(match[2] or "")):
            got = f"{file}, line {number}: got {text!r}; expected one KEY=VALUE per line"
            way = "printf '%s\\n' in place of `python3 -m verl.trainer.main_ppo`, which makes bash print such lines"
            raise UserError(f"{got}; for a shell script, try a copy with {way}")
        if match:
            overrides.append(Override(match[1] or match[3], match[2], f"{file}, line {number}", is_written=True))
    need(overrides, f"got --overrides {file} without overrides; expected KEY=VALUE, one per line")
    return overrides


def trap_findings(overrides: list[Override]) -> tuple[list[Override], list[str]]:
    """(The other overrides, findings about those that verl does not act upon, and about keys that stand twice)."""
    findings, rest, seen = [], [], {}
    values = {o.key.lstrip("+"): str(o.value).lower() for o in overrides}
    has_both_sides = {f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"} <= {*values}
    has_old_trainer = values.get("trainer.use_v1") == "false"
    for override in overrides:
        key = override.key.lstrip("+")
        advice = advice_today(key.lstrip("~"), str(override.value))
        if (key == f"{ACTOR}.clip_ratio" and has_both_sides) or (key.startswith(f"{CORRECTION}.") and has_old_trainer):
            advice = None  # beside both sides it may stand; the old trainer reads them
        if override.text() == "data.reward_fn_key=data_source":
            advice = None  # which verl does
        if advice:
            effect, instead = advice
            findings.append(f"key: got {override.text()} ({override.source}); verl {VERL} {effect}; try {instead}")
        else:
            rest.append(override)
        if key in seen:
            got = f"twice: got {key} in {seen[key]} and {override.source}"
            findings.append(f"{got}; expected it once, as the last wins")
        seen[key] = override.source
    return rest, findings


def epoch_findings(composed) -> list[str]:
    """Epochs that end before total_training_steps."""
    trainer, files = composed.trainer, composed.data.train_files
    paths = [Path(name).expanduser() for name in ([files] if isinstance(files, str) else files)]
    if not trainer.total_training_steps or not all(p.is_file() and p.suffix == ".parquet" for p in paths):
        return []
    steps = sum(map(parquet_length, paths)) // composed.data.train_batch_size
    if steps * trainer.total_epochs >= trainer.total_training_steps:
        return []
    got = f"steps: got {trainer.total_epochs} epochs of {steps} steps"
    wanted = f"trainer.total_training_steps={trainer.total_training_steps}"
    return [f"{got}; expected {wanted}, or the run ends early without a checkpoint"]


def written_rows(composed) -> tuple[dict, list[dict], list[str]]:
    """(Report, some rows, findings) of the training files, if they and the model are here."""
    from verl.utils.config import omega_conf_to_dataclass

    data, files = composed.data, composed.data.train_files
    files = [files] if isinstance(files, str) else [*files]
    tests = [data.val_files] if isinstance(data.val_files, str) else data.val_files or []
    away = [name for name in tests if "://" not in name and not Path(name).expanduser().is_file()]
    no_test = [f"data: got data.val_files {name}, which is not here; expected a file, as for train" for name in away]
    if away := [name for name in files if not Path(name).expanduser().is_file()]:
        return {"unchecked": f"{away[0]} is not here"}, [], []
    try:
        model = omega_conf_to_dataclass(composed.actor_rollout_ref.model)
    except Exception as error:  # a hub's name, or a folder of the cluster
        return {"unchecked": f"the model does not load here ({str(error)[:100]})"}, [], []
    template = {"add_generation_prompt": True, **(data.get("apply_chat_template_kwargs") or {})}
    try:
        report, rows, findings = rows_in_verl(composed, model)
        picked = [rows[i] for i in range(0, len(rows), max(1, len(rows) // 4))]
        for prompt in [row["raw_prompt"] for row in picked if not model.processor]:
            need(isinstance(prompt, list), f"{prompt!r} is not a list of messages")
            length = len(model.tokenizer.apply_chat_template(prompt, return_dict=True, **template)["input_ids"])
            got = f"data: got a prompt of {length} tokens with data.max_prompt_length={data.max_prompt_length}"
            fits = f"{got}; expected shorter ones; try data.filter_overlong_prompts=True"
            findings += [fits] if length > data.max_prompt_length and fits not in findings else []
    except Exception as error:  # a column that is missing, a file of another kind, a prompt that the template refuses
        got = f"data: verl's data set does not take {', '.join(files)}: {type(error).__name__}: {str(error)[:200]}"
        return {}, [], [f"{got}; expected {data.prompt_key} with chat messages"]
    unusable = [r for r in picked if "data_source" not in r or "ground_truth" not in (r.get("reward_model") or {})]
    if unusable:
        columns = ", ".join(name for name in unusable[0] if name not in ("raw_prompt", "dummy_tensor", "index"))
        findings.append(f"data: got rows of {columns}; expected data_source and reward_model.ground_truth")
    return {"data": report}, [] if unusable else picked, no_test + findings


def tried_reward(composed, rows: list[dict]) -> tuple[dict, list[str]]:
    """(Report, findings) of the reward that verl's own loader finds, called on rows as verl's manager does."""
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.utils.reward_score import default_compute_score

    path = composed.reward.custom_reward_function.path
    if not rows and not Path(path or "").is_file():  # it lies where the job will run
        return {}, []
    try:
        score = get_custom_reward_fn(composed) or default_compute_score
    except Exception as error:  # whatever the user's module raises
        return {}, [f"reward: verl does not load it: {error.__cause__ or error!r}"]
    scores, wrong = [], ""
    for row in rows:
        truth, info = row["reward_model"]["ground_truth"], {**row["extra_info"], "num_turns": None}
        for text in trial_texts(str(truth)[:200]):
            given = {"data_source": row["data_source"], "solution_str": text, "ground_truth": truth}
            try:
                value = score(**given, extra_info=info)
                value = asyncio.run(value) if inspect.isawaitable(value) else value
                scores.append(float(value["score"] if isinstance(value, dict) else value))
            except Exception as error:  # the function raises, or returns something that is not a score
                wrong = wrong or f"reward: verl's call raises {type(error).__name__}: {str(error)[:200]}"
    if not all(map(math.isfinite, scores)):
        wrong = wrong or "reward: got a score that is not finite; expected numbers"
    tried = {"rows": len(rows), "completions": len(rows) * len(trial_texts(""))}
    tried["scores"] = sorted({round(x, 4) for x in scores})
    return {"reward": tried} if scores else {}, [wrong] if wrong else []


def check_written(config: Config) -> int:
    """--check --overrides: names of keys, then verl's own configuration where it is installed; 1 with findings."""
    usual = dataclasses.asdict(dataclasses.replace(Config(), check=config.check, overrides=config.overrides))
    others = "".join(f" --{name}" for name, value in dataclasses.asdict(config).items() if value != usual[name])
    got = f"got --overrides {config.overrides}{' with' if others else ''}{others}"
    need(config.check and not others, f"{got}; expected --check --overrides FILE alone: a run takes --override")
    overrides = read_overrides(config.overrides)
    rest, findings = trap_findings(overrides)
    report, wrong = {"verl": VERL, "overrides": len(overrides)}, name_findings(rest)
    findings += [text for _, text in wrong or []]
    if wrong is not None and not importlib.util.find_spec("verl"):
        checked = "names of keys, keys without effect; no values, as verl is not installed here"
        say(f"note: {checked}; for those, {INSTALL}")
        return report_findings(report | {"checked": checked}, findings)
    need_verl()
    rest = [o for o in rest if o not in [override for override, _ in wrong or []]]
    with contextlib.redirect_stdout(sys.stderr):  # verl prints
        composed, refused = compose_config(rest)
        findings += refused
        if composed is not None:
            # what does not begin to be a configuration is told alone
            more = missing_values(composed) or [*config_findings(composed), *epoch_findings(composed)]
            known = [f"got no {o.key.lstrip('+')};" for o in overrides if o not in rest]  # refused above
            findings += [text for text in more if not any(key in text for key in known)]
            if not findings:
                read, rows, of_data = written_rows(composed)
                tried, of_reward = tried_reward(composed, rows)
                report, findings = report | read | tried, of_data + of_reward
    return report_findings(report, findings)


# -------------------------------------------------------------------------- launch (src/programs/verl_train/launch.py)

RUN = r"""#!/usr/bin/env bash
# {title} in verl {verl}; written by verl_train.py.
# bash run.sh [KEY=VALUE ...]: further overrides win.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ray={ray}
if [[ ${RAY_JOB_CONFIG_JSON_ENV_VAR:-} && $PWD == "$HERE" ]]; then
  ray=standing HERE=.  # of `ray job submit --working-dir JOB`, with a copy of this folder for each node
fi
cd "$HERE"
mkdir -p {output}
metrics={output}/metrics.jsonl; n=1
while [[ -e $metrics ]]; do metrics={output}/metrics.$((++n)).jsonl; done  # verl empties the file that it is given
export VERL_FILE_LOGGER_PATH=$metrics TOKENIZERS_PARALLELISM=false
overrides=(
{overrides}
)
if [[ $ray == own ]]; then
  unset RAY_ADDRESS  # in all its processes
else  # its processes do not have this environment; Hydra wants \' for a quote in the path
  overrides+=(
    ray_kwargs.ray_init.num_cpus=null ++ray_kwargs.ray_init.address=null
    "+ray_kwargs.ray_init.runtime_env.env_vars={VERL_FILE_LOGGER_PATH:'${metrics//\'/\\\'}'}"
  )
fi
if [[ "${overrides[*]} $*" != *attn_implementation* ]] && ! {python} -c 'import flash_attn' 2>/dev/null; then
  overrides+=(  # verl's default attention needs it
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa
    actor_rollout_ref.model.use_remove_padding=False
  )
fi
exec {python} -u -m verl.trainer.main_ppo "${overrides[@]}" "$@"
"""
UNSAID = ("override", "reward", "data", "eval_data", "output_dir", "cpus")  # whose values stand in the override


def shell_word(text: str, places: dict[str, str]) -> str:
    """A word of bash; `places` are paths that stand as variables."""
    if not any(place in text for place in places):
        return shlex.quote(text)
    escaped = re.sub(r'([\\"$`])', r"\\\1", text)
    for place, variable in places.items():
        escaped = escaped.replace(place, variable)
    return f'"{escaped}"'


def script(
    config: Config, job: Layout, overrides: list[Override], python="python", places=None, run: TrlRun | None = None
) -> str:
    """run.sh: the command; after the first override of a setting stand the setting and TRL's names for it."""
    places, names = {f"{job.folder}/": "$HERE/"} | (places or {}), [f.name for f in dataclasses.fields(Config)]
    order = {name: i for i, name in enumerate(names)} | {"override": len(names)}
    lines, source = [], None
    for override in sorted(overrides, key=lambda o: order[o.source]):
        line = f"  {shell_word(override.text(), places)}"
        if override.source != source:
            source = override.source
            value = "" if source in UNSAID else f": {getattr(config, source)}"
            line += f"  # {source}{value}{run.origins.get(source, '') if run else ''}".replace("\n", " ")
        lines.append(line)
    return with_values(
        RUN,
        title=Path(config.from_trl).name if config.from_trl else config.algorithm,
        verl=VERL,
        ray="standing" if config.nodes > 1 else "own",
        output=shell_word(job.output, places),
        overrides="\n".join(lines),
        python=python,
    )


def write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def follow(command: list[str], output: Path) -> int:
    """Run a command and return 0, 1 on failure, 3 where a reward or an environment failed, 128 + n after signal n.

    Its output goes to the terminal and to verl.log of the output folder.
    """
    signals, failed, log = [], "", output / "verl.log"
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    child = subprocess.Popen(command, start_new_session=True, **pipes)

    def stop(signum, frame) -> None:
        signals.append(signum)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM if len(signals) == 1 else signal.SIGKILL)

    earlier = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        with log.open("ab") as f, child:
            for line in child.stdout:
                f.write(line)
                f.flush()
                sys.stderr.buffer.write(line)
                sys.stderr.flush()
    finally:
        for signum, handler in earlier.items():
            signal.signal(signum, handler)
    with contextlib.suppress(OSError):
        failed = (output / REWARD_ERROR).read_text(encoding="utf-8").strip()
    if signals:
        say(f"stopped by signal {signals[0]}; --resume continues from the newest checkpoint")
        return 128 + signals[0]
    if failed:
        say(f"error: {failed}")
        return 3
    if child.returncode:
        say(f"error: verl ended with exit code {child.returncode}; expected 0; its log is {log}")
    return int(child.returncode != 0)


def run_local(config: Config, run: TrlRun | None = None) -> int:
    """--run: the trainer as a child process; its output goes to the terminal and to verl.log."""
    need_verl()
    names = [value for _, key, value in map(split_override, config.override) if key == f"{ROLLOUT}.name"]
    engine = (names or [config.verl_rollout])[-1]
    need(not missing_engine(engine), f"got a Python without {engine}, the sampling engine; expected it; {INSTALL}")
    job, overrides = prepare_job(config)
    for finding in batch_findings(config):
        say(f"warning: {finding}")
    folder, output = Path(job.folder), Path(job.output)
    findings = job_findings(folder)
    need(not findings, "".join(findings[:1]))
    write_script(folder / "run.sh", script(config, job, overrides, shlex.quote(sys.executable), run=run))
    if config.nodes == 1 and (address := os.environ.get("RAY_ADDRESS")):
        say(f"note: RAY_ADDRESS {address} is ignored for --run, which has a Ray of its own")
    return follow([str(folder / "run.sh")], output) or finish(config, output)


def finish(config: Config, output: Path) -> int:
    """Tell how a run ended, and copy its last policy to final/; returns the exit code."""
    last = output / "checkpoints" / f"global_step_{config.steps}" / "actor"
    if not last.is_dir():
        say(f"error: got a run that ended without the checkpoint of step {config.steps}; expected {last}")
        return 1
    follow_umask(output / "checkpoints")
    source, final = last / ("lora_adapter" if config.lora_rank else "huggingface"), output / "final"
    if source.is_dir():
        shutil.rmtree(final, ignore_errors=True)
        shutil.copytree(source, final)
        name_dtype(final)
        follow_umask(final)
    summary = {"steps": config.steps, "checkpoint": str(last.parent), "final": str(final) if source.is_dir() else None}
    tell(json.dumps(summary, indent=1))
    return 0


def name_dtype(folder: Path) -> None:
    """Let config.json name the dtype of the weights beside it: verl writes bfloat16 there, whatever they are."""
    weights, config = sorted(folder.glob("model*.safetensors")), folder / "config.json"
    if weights and config.is_file():
        entry = next(entry for name, entry in safetensors_header(weights[0]).items() if name != "__metadata__")
        dtype = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[entry["dtype"]]
        settings = json.loads(config.read_text(encoding="utf-8")) | {"dtype": dtype}
        config.write_text(json.dumps(settings, indent=2), encoding="utf-8")


# -------------------------------------------------------------------------- export (src/programs/verl_train/export.py)

COMPUTE_SCORE = '''\
# below: the call of verl {verl}, by verl_train.py --export
COLUMNS, GOLD, GOLD_IS_JSON = "{columns}", "{gold}", "{is_json}"  # verl calls the column GOLD ground_truth
WEIGHTS = "{weights}"
BITS = "{n}"  # of a score: float32 adds up a group of equal ones exactly, or verl makes advantages of 0.1 of eight 1.2


def columns_of(ground_truth, extra_info) -> dict:
    """The columns of a row as they were in the data."""
    import json

    extra = dict(extra_info or {})
    coded, row = extra.get("json_columns"), {}
    coded = [] if coded is None else list(coded)  # a list from verl's rows, an array from those of pandas
    for name in COLUMNS:
        value = extra.get(name)
        row[name] = json.loads(value) if name in coded and value is not None else value
    if GOLD:
        row[GOLD] = json.loads(ground_truth) if GOLD_IS_JSON else ground_truth
    return row


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> dict:
    """One completion's weighted sum, and each function's own value; verl knows no None, which adds nothing and is 0."""
    import json
    import math

    row = columns_of(ground_truth, extra_info)
    prompt = json.loads((extra_info or {}).get("prompt_json") or "null")
    completion = "{completion}"
    parts = "{parts}"
    total = sum(WEIGHTS[name] * value for name, value in parts.items() if value is not None)
    named = {name: float(value or 0.0) for name, value in parts.items()}
    mantissa, exponent = math.frexp(total)
    return {**named, "score": math.ldexp(round(math.ldexp(mantissa, BITS)), exponent - BITS)}
'''
PORT = """\
# {source} in verl {verl}

`bash run.sh` in an environment with `verl[vllm]=={verl}` starts the run; it needs the files of this folder and nothing
else. Behind each override of `run.sh` stands the setting that it comes from, and behind that TRL's names for it. verl
{verl} reads every key, and every default is that of TRL 1.16, so you need not look them up.

{checked}- Not tried: training on GPUs.

## What verl lacks or does differently

{notes}
- A reward that raises does not end the run: verl drops the row and goes on. `verl_train.py --run` and the folder of
  `--print` end it.
- A reward's None adds nothing to the sum, as in TRL; the means that verl logs count it as 0. Where all rewards are None
  the score is 0 and counts in its group; TRL leaves such a completion out.
- TRL has no limit on prompts, verl needs one: `data.max_prompt_length={max_prompt}`; longer ones are left out.
- Completions come from vLLM, whose probabilities differ a little from the trainer's: watch
  `training/rollout_probs_diff_mean`{correction}.
{few}- The same seed draws other rows and other samples. Incomplete batches are dropped by both.
"""
FEW = """- The data has fewer rows than a step has prompts, where TRL takes no step and verl does not start: `run.sh`
  lists the file {times} times, enough to try it, too little to train on.
"""
HOOKED = ("environment", "dynamic_sampling", "missing_eos_penalty", "overlong_share")
GENERATED = set(
    "BITS COLUMNS GOLD GOLD_IS_JSON WEIGHTS columns_of compute_score row prompt completion parts total named".split()
)
FILES = ("run.sh", "verl_reward.py", "train.parquet", "val.parquet", "port.md")
KEYS_CHECKED = f"Every key of `run.sh` is one that verl {VERL}'s configuration has, or takes with +"


def check_exportable(config: Config) -> None:
    """Raise UserError for what needs verl_hooks.py or verl_environment.py, so this script beside it."""
    needs = {name: getattr(config, name) for name in HOOKED}
    needs["advantage"] = (ADVANTAGES.get(config.advantage, OWN_NAME) or "").endswith("_ours")
    needs |= {"loss": is_own(config.loss), "nodes": config.nodes > 1}
    got = ", ".join(f"{name} {getattr(config, name)}" for name, value in needs.items() if value)
    expected = "expected what verl has itself, on one machine; try --print, whose folder includes this script"
    need(not got, f"got --export with {got}; {expected}")


def embedded_rewards(specs: list[str]) -> tuple[str, dict]:
    """Source with the reward functions and what they use, and {function: weight}; UserError where it is not enough."""
    files = {file_of(spec) for spec in specs}
    need(len(files) == 1, f"got rewards from {len(files)} files; expected one file with --export; try --print")
    file = files.pop()
    beside = [other.name for other in imported_files(file)[1:]]
    alone = "expected a file that stands alone with --export; try --print, whose folder includes them"
    need(not beside, f"got {file.name}, which imports {', '.join(beside)}; {alone}")
    weights = {}
    for spec in specs:
        function, _ = find_reward(spec)
        plain = inspect.isfunction(function) and not inspect.iscoroutinefunction(function)
        # so no lambda, and none twice
        plain = plain and spec.partition("*")[0].endswith(f":{function.__name__}") and function.__name__ not in weights
        need(plain, f"got reward {spec!r}; expected plain functions with --export; try --print, which takes all kinds")
        weights[function.__name__] = weight_of(spec)
    source = extract(file.read_text(encoding="utf-8"), list(weights))
    names = set().union(*map(bound_names, ast.parse(source).body))
    taken = ", ".join(sorted(names & GENERATED))
    need(not taken, f"got {file.name} with the names {taken}; expected others, as --export needs these; try --print")
    return source, weights


def call_of(function, columns: list[str]) -> str:
    """The source of one entry of `parts`: a call for one sample, or for a batch of one."""
    parameters, name = inspect.signature(function).parameters.values(), function.__name__
    rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if is_per_sample(function):
        texts, item = {"prompt": "prompt", "completion": "solution_str"}, ""
        row, columns = "**row", {key: f'row["{key}"]' for key in columns}
    else:
        texts, item = {"prompts": "[prompt]", "completions": "[completion]"}, "[0]"
        row, columns = "**{key: [value] for key, value in row.items()}", {key: f'[row["{key}"]]' for key in columns}
    given = texts if rest else {key: value for key, value in (texts | columns).items() if key in named}
    words = [f"{key}={value}" for key, value in given.items()] + [row] * rest
    return f'        "{name}": {name}({", ".join(words)}){item},'


def reward_text(specs: list[str], rows: list[dict], columns: list[str], group_size: int) -> str:
    """verl_reward.py: the functions themselves, and verl's call."""
    source, weights = embedded_rewards(specs)
    fields = {row["extra_info"]["ground_truth_field"] for row in rows}
    got = f"got rows with ground truth in {', '.join(sorted(fields))}"
    need(len(fields) == 1, f"{got}; expected one column with --export")
    gold, _, form = fields.pop().partition(":")
    calls = "\n".join(call_of(find_reward(spec)[0], columns) for spec in specs)
    is_text = rows[0]["extra_info"].get("prompt_is_text", False)
    tail = with_values(
        COMPUTE_SCORE,
        verl=VERL,
        columns=[name for name in columns if name != gold],
        gold=repr("" if gold == "none" else gold),
        is_json=bool(form),
        weights=weights,
        n=bits_of(group_size),
        completion="solution_str" if is_text else '[{"role": "assistant", "content": solution_str}]',
        parts=f"{{\n{calls}\n    }}",
    )
    return f"{source}\n\n{tail}"


def port_text(config: Config, run: TrlRun, overrides: list[Override], checked: list[str]) -> str:
    """port.md: what was checked, and what is not the same in verl."""
    notes = [f"- {note}." for note in run.notes]
    idle = ", ".join(f"`{name}`" for name in run.idle)
    if idle:
        notes.append(f"- Of the machine or the log, or nothing with these values: {idle}.")
    times = max(o.text().count("train.parquet") for o in overrides)
    return with_values(
        PORT,
        source=Path(config.from_trl).name,
        verl=VERL,
        checked="".join(f"- {sentence}.\n" for sentence in checked),
        notes="\n".join(notes),
        max_prompt=config.max_prompt_tokens,
        correction="" if config.mismatch == "none" else "; the correction is on",
        few=FEW.format(times=times) if times > 1 else "",
    )


def export_job(config: Config, run: TrlRun | None = None) -> int:
    """--export: write run.sh, verl_reward.py, the data, and port.md of a TRL run; 3 where a trial reward raised."""
    check_exportable(config)
    folder = Path(config.export).resolve()
    there = ", ".join(name for name in FILES if (folder / name).exists())
    need(not there, f"got --export {config.export}, which has {there}; expected a folder without them; try another")
    config.output_dir, config.cpus = str(folder / "run"), 1  # so that run.sh names the fewest CPUs that Ray needs
    with tempfile.TemporaryDirectory() as job_folder:
        place = Path(job_folder).resolve()
        job, overrides = prepare_job(config, folder=place)
        names = ["train.parquet", "val.parquet"] if job.held_out else ["train.parquet"]
        splits = {name: parquet_rows(place / name) for name in names}
        for row in [row for split in splits.values() for row in split]:  # verl gives a reward no other prompt
            prompt = row["prompt"][0]["content"] if row["extra_info"].get("prompt_is_text") else row["prompt"]
            row["extra_info"]["prompt_json"] = json.dumps(prompt, ensure_ascii=False)
        rows = splits["train.parquet"]
        reward = reward_text(reward_specs(config), rows, job.columns, config.group_size)
        wrong = name_findings(overrides)
        need(not wrong, "; ".join(text for _, text in wrong or []))
        settings = json.loads((place / "settings.json").read_text(encoding="utf-8"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "verl_reward.py").write_text(reward, encoding="utf-8")
        for name, split in splits.items():
            write_parquet_file(split, folder / name)
        write_parquet_file(rows, place / "train.parquet")
        findings, trial = try_job(place, export=str(folder / "verl_reward.py"))
    checked = ([KEYS_CHECKED] if wrong is not None else []) + findings
    if trial.get("raised"):
        checked.append(f"in a trial the reward raised at {trial['raised']}; verl would silently drop such a row")
    if trial.get("completions") and not findings:
        seen = ", ".join(f"{score:g}" for score in trial["scores"][:6])
        tried = f"{trial['completions']} completions of {trial['rows']} rows"
        checked.append(f"The reward was tried: {tried} have the functions' weighted sum as their score ({seen} seen)")
    if trained := settings.get("eval/trained_rows"):
        shares = f"{trained} of {settings['held_out_rows']} evaluation prompts also occur in training"
        checked.append(f"{shares}: the accuracy that verl logs is inflated")
    text = script(config, job, overrides, places={str(folder): "$HERE"}, run=run)
    write_script(folder / "run.sh", text)
    if run:
        (folder / "port.md").write_text(port_text(config, run, overrides, checked), encoding="utf-8")
        (folder / "run" / "trl_rewards.py").unlink(missing_ok=True)  # it is in verl_reward.py now
    for name in FILES:
        if (folder / name).exists():
            tell(folder / name)
    for sentence in checked:
        say(f"{'checked' if sentence.startswith(('Every', 'The')) else 'warning'}: {sentence}")
    if trial.get("raised"):
        say("error: got a reward that raised, as shown above; the files are written; try fixing it, and another folder")
        return 3
    say(f"start it in verl's environment: bash {folder / 'run.sh'}")
    return 0


# ------------------------------------------------------------------------ command (src/programs/verl_train/command.py)


def print_files(config: Config, run: TrlRun | None) -> int:
    """--print: write the job folder and print the command."""
    job, overrides = prepare_job(config)
    folder, text = Path(job.folder), script(config, job, overrides, run=run)
    write_script(folder / "run.sh", text)
    tell(text, end="")
    for finding in batch_findings(config) + [text for _, text in name_findings(overrides) or []]:
        say(f"warning: {finding}")
    say("note: the rewards were not tried, which --check does")
    return 0


def run(argv: list[str]) -> int:
    words = in_own_words(argv, [f.name for f in dataclasses.fields(Config)])
    machines = hardware_flags(words)
    of_trl = trl_run(words, machines)
    config = parse_config(machines + (of_trl.flags if of_trl else []) + words)
    check_units(dataclasses.asdict(config), argv)
    need(of_trl or not config.from_trl, "got from_trl in the file of --config; expected it as a flag")
    if config.overrides:
        return check_written(config)
    say_notes(config)
    if config.check:
        return run_check(config)
    if config.export:
        return export_job(config, of_trl)
    return run_local(config, of_trl) if config.run else print_files(config, of_trl)


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    return exit_code(lambda: run(words), mend="try the same command", stopped="stopped")


if __name__ == "__main__":
    sys.exit(main())
