#!/usr/bin/env python3
# Built from src/programs/grpo_train/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "trl>=1.16,<1.17", "transformers>=5.23,<6", "torch>=2.6", "datasets", "accelerate", "peft", "numpy", "pyyaml",
#   "tqdm", "matplotlib", "pyarrow",
# ]
# ///
"""GRPO through TRL's GRPOTrainer: any causal language model, any Python reward, one GPU or many.

One rollout samples G completions per prompt (`num_generations`), scores them, and compares each with its own group:

    advantage    A_i = (r_i - mean(r_1..r_G)) / (std(r_1..r_G) + 1e-4)                     Shao 2024, section 4.1.2
                 no division with --scale_rewards none (Liu 2025), the batch's std with batch
    loss         -min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A) + beta k3(policy || reference)  eq. 3
                 averaged over all tokens of the rollout with dapo (Yu 2025, eq. 8), per completion with grpo

The settings have TRL's names and, above 50M parameters, TRL's learning rate. This file adds checks before the model
loads, greedy held-out evaluation, metrics and samples on disk, and a prompt order that survives a resume.

With --environment a completion is a conversation of several turns, sampled by TRL and played here through its
rollout_func: each tool has a time limit, sampled ids are never re-encoded, and only sampled tokens are in the loss.

Deliberately left out: images; a baseline by turn and a critic, which scripts/ppo_train.py has.

    python scripts/grpo_train.py --steps 20 --output_dir runs/first          # CPU, the embedded model, under a minute
    python scripts/grpo_train.py --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --eval_data test.jsonl \\
        --reward MATH_REASONING_REWARDS --profile memory --output_dir runs/qwen                            # one GPU
    python scripts/grpo_train.py --environment examples/environments.py:SecondAttempt --max_turns 2 --output_dir runs/2
    accelerate launch --num_processes 4 scripts/grpo_train.py --profile fast --model … --data … --reward … # several

Exit codes: 0 done, 1 saved and stopped by --stop_when broken, 2 bad input, 3 a reward or environment failed,
4 diverged, 5 vLLM has other weights than the policy, 128 + n saved and stopped by signal n.
"""

# Contents
#       143-154  python source     Parses Python source in a process with threads
#       157-260  messages          Errors that a user can fix, each with an exit code; messages on stderr; the layout …
#       263-339  bundle            Paths of this bundle and of its embedded model, data and rewards; loading its …
#       342-564  dialect           Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and …
#       567-782  settings          Settings: dataclasses whose fields are flags and YAML keys, and the checks that …
#      785-1069  processes         The processes of a run: lazy torch, device, threads, sums, distribution of rows, …
#     1072-1142  exit codes        Program exit: errors that a user can fix become a message and an exit code
#     1145-1382  data files        Open data files as text: decompress, decode, refuse files without data; parse CSV …
#     1385-1482  nested rows       Find rows inside other JSON: an object with a list of rows, columns instead of …
#     1485-1750  rows              Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their prompts
#     1753-1963  chat              Chat templates: their settings, rendering messages, and prompts that bypass a …
#     1966-2055  held out          Held-out prompts: split them off, and count or refuse those that also occur in …
#     2058-2183  prompts           Load training and held-out prompts as token ids
#     2186-2396  user code         What users' rewards get: texts, copies of the columns, and their own state of the …
#     2399-2636  reward forms      The forms that a reward function may have, and loading rewards from files
#     2639-2975  rewards           The reward of a run, a weighted sum of functions; async ones run in one event …
#     2978-3107  environments      Load and check environments: classes whose methods are tools for the model, or …
#     3110-3313  tool calls        Parse tool calls in model output, by the tokenizer's response template or one of …
#     3316-3436  tool runs         Run the calls of many conversations concurrently, each with a time limit; none can …
#     3439-3740  turn bridge       Compute the tokens between turns from the chat template, so that sampled ids are …
#     3743-4078  conversations     Play a policy's conversations with environments; each turn samples all open …
#     4081-4213  play setup        Set up and score conversations, for all programs that take --environment
#     4216-4263  whole models      Refuse what transformers would make a model of by guessing: missing weights, other …
#     4266-4447  adapters          LoRA adapters: where their base and tokenizer are, loading, merging, saving
#     4450-4516  models            The networks of a run: their precision, the frozen reference, prompts that they …
#     4519-4555  tokenizers        Tokenizers: loading and saving, the tokens that end a completion, the rows that …
#     4558-4632  loading           Load networks: attention, 4-bit weights, dropout, dtypes, generation settings, …
#     4635-4757  sync check        Check that a sampler has the policy's weights: checksums of each tensor, log-probs …
#     4760-4821  sampling vllm     Sampling with vLLM on the same GPU, and copying the weights into it
#     4824-4835  rollouts          Sample and score a batch's rows over all processes
#     4838-4844  losses            The KL to the reference, policy and value losses, and how losses per token become …
#     4847-4917  idle settings     Settings without effect in a configuration: named at the start, with what would …
#     4920-5027  trainer settings  Settings that several trainers have, with their defaults: a trainer's Config adds …
#     5030-5048  optimizer         The updates of a step: learning rates, gradients over the processes, clipping, …
#     5051-5314  memory            The memory that a run will need, from the shape of its networks
#     5317-5525  fit               Sizes that fit the memory: chosen and reported in one line, refused if too large; …
#     5528-5571  pictures          The picture of a run, curves.png, and the keys of samples.jsonl
#     5574-5737  output folder     The output folder: which run owns it, folders written whole or not at all, modes …
#     5740-5759  checkpoints       The state of a run, checkpoints, resuming, the exported model
#     5762-5876  run end           A run's end: summary.json, the faults that its last steps show, and what is printed
#     5879-5925  run check         diagnose.py's verdict on a run, while it trains and at its end
#     5928-6123  progress          A run's progress and log: evaluations, the end of each step, stopping by a signal, …
#     6126-6157  paired tests      Intervals, paired tests, pass@k
#     6160-6386  settings          Settings under TRL's names, profiles, and contradictions between settings
#     6389-6501  data              Prompts and their order, how steps, rollouts and prompts divide, and our settings …
#     6504-6617  rewards           Rewards as TRL calls them, checked and logged
#     6620-6755  evaluation        Conversations with environments through TRL, and held-out evaluation with greedy …
#     6758-6872  colocated         vLLM in TRL's process: the arguments of its engine that TRL does not pass on, and …
#     6875-7102  callback          Checkpoints, final/, and the work around TRL's steps: evaluation, logs under our …
#     7105-7210  trainer           TRL's trainer with this bundle's weights, prompts and sampler
#     7213-7432  run               Loading and checks before the first step, --dry_run, the run, and the command line

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
import fcntl
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
import subprocess
import sys
import sysconfig
import threading
import time
import traceback
import unicodedata
import urllib.error
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

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
STATM = Path("/proc/self/statm")  # sizes in pages; the second is the resident set
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


def forget_peak() -> None:
    """Reset the GPU's peak memory."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def memory_metrics() -> dict[str, float]:
    """Largest resident memory of any process and largest GPU peak since `forget_peak`, in GiB; unknown ones are absent.

    Every process must call it.
    """
    metrics = {}
    if STATM.exists():
        pages = int(STATM.read_text().split()[1])
        metrics["memory/process_gib"] = pages * os.sysconf("SC_PAGE_SIZE") / 2**30
    if torch.cuda.is_initialized():
        metrics["memory/gpu_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    of_all = gather_rows([metrics])
    return {name: max(one[name] for one in of_all) for name in metrics}


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


def overlap_metric(rows: list[dict]) -> dict[str, int]:
    """{"eval/trained_rows": count} of evaluated rows that also train; {} if there are none."""
    count = sum(row.get("trains", False) for row in rows)
    return {"eval/trained_rows": count} if count else {}


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


def is_scored(sample: dict) -> bool:
    """Whether some reward applies to a sample; otherwise its score of 0 means nothing."""
    return any(value is not None for value in sample["rewards"].values())


def known_scores(samples: list[dict]) -> list[float]:
    """The scores of the samples to which some reward applies."""
    return [s["score"] for s in samples if is_scored(s)]


def refuse_unscored(rollouts_in_a_row: int, rollouts: int, names) -> None:
    """Raise RewardError if all rewards were None in three rollouts in a row, or in every rollout of a shorter run."""
    if rollouts_in_a_row >= min(3, rollouts):
        got = f"reward {', '.join(names)}: got None for every completion of {rollouts_in_a_row} rollouts in a row"
        raise RewardError(f"{got}; expected numbers; try checking the columns that it reads")


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


def as_rewards_see(rows: list[dict], conversations: list[Conversation]) -> tuple[list[dict], list[list[dict]]]:
    """(rows with their environment and the prompt that `reset` completed, messages that followed), for rewards."""
    begun, seen = [1 if isinstance(row["prompt"], str) else len(row["prompt"]) for row in rows], []
    for row, t, n in zip(rows, conversations, begun, strict=True):
        seen.append({**row, "prompt": t.messages[:n], "columns": {**row["columns"], OBJECTS: t.environment}})
    return seen, [t.messages[n:] for t, n in zip(conversations, begun, strict=True)]


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


def ending_ids(ends: int | list[int] | None, tokenizer) -> list[int]:
    """Sorted ids of the tokens that end an answer: a model's eos_token_id (one or a list) and the tokenizer's."""
    return sorted({*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None})


def token_count(tokenizer, eos_ids: list[int]) -> int:
    """Number of embedding rows that belong to tokens; rows beyond only round up the size and must not be sampled."""
    return 1 + max(*tokenizer.get_vocab().values(), *eos_ids)


# ----------------------------------------------------------------------------- loading (src/parts/networks/loading.py)

# attention kinds of transformers; auto leaves the choice to it: sdpa if the architecture supports it
ATTENTION_KINDS = ("auto", "eager", "sdpa", *(f"flash_attention_{i}" for i in (2, 3, 4)), "flex_attention")


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


def generation_settings(source: str):
    """A model's generation settings, from generation_config.json or else from config.json."""
    try:
        return transformers.GenerationConfig.from_pretrained(source)
    except OSError:  # no such file
        return transformers.GenerationConfig.from_model_config(transformers.AutoConfig.from_pretrained(source))


def sample_plainly(model, eos_ids: list[int], pad_id: int) -> None:
    """Let `generate` draw from the model's own distribution, without the checkpoint's serving settings.

    Penalties, banned tokens or a minimum length would change samples but not the log-probs that are trained.
    """
    plain = transformers.GenerationConfig(eos_token_id=eos_ids or None, pad_token_id=pad_id)
    unwrapped(model).generation_config = plain


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


def cut_vocabulary(network, known: int) -> None:
    """Let vLLM sample none but the first `known` rows of an embedding: it cuts its own padding at the same place."""
    for layer in network.modules():
        if type(layer).__name__ == "LogitsProcessor":
            layer.org_vocab_size = min(known, layer.org_vocab_size)


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


def sampling_bytes(model: DecoderShape, run: PassShape, new_tokens: int) -> float:
    """Bytes of the KV cache of prompts of `run` and their completions, of their forward pass, and of a token's draw.

    That has logits, scaled ones and log-probs [rows, V] in float32, and probabilities in float64.
    """
    cache = 2 * model.layers * model.keys * run.compute * run.rows * (run.length + new_tokens)
    logits = run.rows * model.vocab
    draw = 4 * (3 + model.logit_softcap) * logits + 3 * 8 * min(logits, max(DRAWN, model.vocab))
    return cache + model.layers * weight_copies(model, run) + max(layer_transient(model, run), draw)


def memory_of_run(
    shape: DecoderShape, run: PassShape, trained: tuple, frozen: dict[str, float], head: float, at_once: int, new: int
) -> dict[str, float]:
    """Bytes per process: what stays, what passes, and the peaks of update and sampling.

    Left out are the process, CUDA's context, libraries and fragments of memory. `run` is the largest micro-batch of an
    update, `trained` of `network_bytes`, `head` of `head_bytes`; `at_once` completions of `new` tokens are sampled.
    """
    kept, gradients = trained
    stays = kept + sum(frozen.values())
    prompts = dataclasses.replace(run, rows=at_once, length=run.length - new)
    return {
        "weights, gradients and optimizer": kept + gradients,
        **frozen,
        "activations of a micro-batch": saved_for_backward(shape, run),
        "logits": head,
        "KV cache while sampling": 2 * shape.layers * shape.keys * run.compute * at_once * run.length,
        "peak of the update": stays + gradients + backward_peak(shape, run, head),
        "peak of sampling": stays + sampling_bytes(shape, prompts, new),
    }


TILE = (4096, 32_768)  # tokens and vocabulary of a piece of TRL's output layer
TILE_BUFFERS = 7  # float32 tensors of a piece that exist at once where there is no Triton, measured on a CPU


def trl_head(shape: DecoderShape, run: PassShape, fused: bool) -> float:
    """Bytes that TRL's output layer and loss take for a micro-batch; with Triton (`fused`) one piece is all."""
    tokens = min(run.tokens, TILE[0])
    logits = 0 if fused else tokens * min(shape.vocab, TILE[1])
    return tokens * TILE[1] * run.compute + head_bytes(shape, run, logits, TILE_BUFFERS)


# -------------------------------------------------------------------------------------- fit (src/parts/running/fit.py)

USABLE_SHARE = 0.85  # of free memory that a choice may take: the estimate was up to 15 % below what was measured
LOADING = "while the networks were loaded and tried out", "a smaller --model, or --lora_rank 16 in a new run"
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


def environment_plan(config, setup) -> dict:
    """What a plan shows of a `PlaySetup`; nothing without one."""
    if not setup:
        return {}
    tools = {kind.name: kind.tool_names for kind in setup.environments.kinds.values()}
    form = setup.form if isinstance(setup.form, str) else "response template"
    return {"environment": {"tools": tools, "tool_format": form, "conversation_tokens": config.conversation_tokens}}


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


# ---------------------------------------------------------------------------- pictures (src/parts/running/pictures.py)

OF_CONVERSATIONS = ("ended_by", "turn_rewards", "messages", "pieces")
# of samples.jsonl
SAMPLE_KEYS = ("prompt", "completion", "score", "rewards", "finished", "advantage", *OF_CONVERSATIONS)

PANELS = {  # title and metrics of each plot; what a run does not log is left out
    "reward": ("reward/mean", "eval/accuracy"),
    "KL (nats per token)": ("kl/ref", "kl/approx", "kl/teacher", "eval/reverse_kl"),
    "completion length (tokens)": ("rollout/length_mean",),
    "entropy (nats)": ("policy/entropy", "policy/teacher_entropy"),
    "explained variance, equal groups, overlap": ("value/explained_variance", "reward/zero_std_frac", "policy/overlap"),
    "clipped and truncated (share)": ("policy/clip_frac", "rollout/truncated_frac"),
}


def plot_curves(source: Path, target: Path) -> None:
    """Draw those PANELS that a metrics.jsonl has figures for, over one step axis, with the run as title."""
    from matplotlib.figure import Figure

    rows, drawn = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()], {}
    for heading, keys in PANELS.items():
        points = {key: [(row["step"], row[key]) for row in rows if row.get(key) is not None] for key in keys}
        if lines := {key: values for key, values in points.items() if values}:
            drawn[heading] = lines
    columns = min(3, max(1, len(drawn)))
    shape = max(1, math.ceil(len(drawn) / columns)), columns
    size = (0.5 + 4.2 * columns, 0.4 + 3.1 * shape[0])
    figure = Figure(figsize=size, layout="constrained")  # pyplot's would stay in memory until it is closed
    axes = figure.subplots(*shape, sharex=True, squeeze=False)
    for axis in axes.flat[len(drawn) :]:
        axis.set_visible(False)
    for axis, (heading, lines) in zip(axes.flat, drawn.items(), strict=False):
        for key, values in lines.items():
            axis.plot(*zip(*values, strict=True), label=key, marker="o" if len(values) < 20 else None, markersize=3)
        axis.set_title(heading, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        axis.tick_params(labelbottom=True)
    figure.suptitle(target.absolute().parent.name)
    figure.supxlabel("step")
    temporary = target.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=100)
    os.replace(temporary, target)


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


def note_schedule(schedule: str, factor: Callable[[int, int], float], step: int, before: int, steps: int) -> None:
    """Say so where `steps` in place of `before` move the learning rate after `step` steps, `factor(step, of)`."""
    old, new = (factor(min(step, number), number) for number in (before, steps))
    if step < steps and old != new:
        say(
            f"note: got --resume with steps {before} -> {steps}: by {schedule}, the learning rate of step {step + 1} "
            f"is {new:.3g} of its peak, not {old:.3g}"
        )


# ------------------------------------------------------------------------------ run end (src/parts/running/run_end.py)

LAST = 3  # steps at the end that are judged, fewer in a run as short
KL_LOST = 10.0  # nats a token; an even choice among 22,000 tokens has an entropy of 10
EXAMPLES, SHOWN = 32, 4  # kept of an evaluation; shown of these, those that changed first
LINE = 200  # characters of a message that are shown
HELD_OUT = {"accuracy": ("accuracy", ".3f"), "reverse_kl": ("reverse KL", ".4g")}  # eval/KEY: its name and format


def faults_at_end(rows: list[dict], summary: dict, rate: str) -> list[str]:
    """What went wrong, a clause each, by rows of metrics.jsonl and held-out figures; empty where nothing is certain."""

    def last(name: str) -> list[float]:
        """The values of the last steps; none where the run has only one."""
        values = [row[name] for row in rows if name in row]
        return values[-min(LAST, len(values) - 1) :] if len(values) > 1 else []

    faults, lower = [], f"try a lower {rate}"
    scores = [row["reward/mean"] for row in rows if "reward/mean" in row]
    spread = next((row["reward/std"] for row in rows if "reward/std" in row), 0.0)
    alike = last("reward/std") and max(last("reward/std")) <= 0.1 * spread
    drop = max(scores) - statistics.fmean(last("reward/mean")) if len(scores) > 1 else 0.0
    high = [score - min(scores) > 0.5 * drop for score in scores]  # a single success among zeros is no level
    lasting = bool(high) and (high[0] or sum(high) > 1)
    at_lowest = alike and max(last("reward/mean")) - min(scores) <= 0.1 * drop
    fell = at_lowest and lasting and drop > max(0.5 * spread, 1e-6)
    if fell:
        faults.append(f"the reward fell from {max(scores):.3f} to its lowest, {scores[-1]:.3f}, for all alike; {lower}")
    kinds = (("accuracy", "held-out accuracy", False), ("reverse_kl", "held-out reverse KL", True))
    for key, name, higher_is_worse in kinds:
        before, after = (summary.get(f"{key}_interval_{when}") for when in ("before", "after"))
        if before and after and (after[0] > before[1] if higher_is_worse else after[1] < before[0]):
            values = [summary[f"{key}_{when}"] for when in ("before", "after")]
            faults.append(f"the {name} got worse, {values[0]:.4g} -> {values[1]:.4g}; {lower}")
    for name, reference in (("kl/ref", "the reference"), ("kl/approx", "the policy before an update")):
        if last(name) and statistics.median(map(abs, last(name))) > KL_LOST:
            faults.append(
                f"the KL to {reference} is {last(name)[-1]:.4g} nats a token: the policy has left it; {lower}"
            )
    updates = [row["optim/updates"] for row in rows if "optim/updates" in row]
    if updates and not any(updates):
        faults.append("no update was applied: groups that score alike, or gradients that are not finite, train nothing")
    cut, lengths = last("rollout/truncated_frac"), last("rollout/length_mean")
    before, after = (summary.get(f"accuracy_interval_{when}") for when in ("before", "after"))
    rose = before and after and after[0] > before[1]  # as where the reward reads the first line of a base model's text
    if cut and min(cut) > 0.95 and not rose:
        faults.append("nearly every completion is cut at the length limit; try a higher one, or first a warm start")
    if cut and lengths and max(lengths) <= 1.01 and max(cut) < 0.5:
        faults.append(f"the policy says nothing: completions are empty; {lower}, or a reward that pays 0 for them")
    return faults


def run_summary(config: BaseConfig, state: dict) -> dict:
    """Steps, seed, folder and both held-out evaluations of a run's state, with the examples that changed first."""
    summary = {"steps": state["step"], "seed": config.seed, "output_dir": config.output_dir}
    evaluations = {when: state[f"eval_{when}"] for when in ("before", "after") if state[f"eval_{when}"]}
    rows = list(zip(*(evaluation["examples"] for evaluation in evaluations.values()), strict=True))
    rows.sort(key=lambda row: len(row) < 2 or row[0].get("completion") == row[1].get("completion"))
    for (when, evaluation), examples in zip(evaluations.items(), zip(*rows[:SHOWN], strict=True), strict=True):
        for key in HELD_OUT:
            value, *ends = (evaluation["metrics"].get(f"eval/{key}{end}") for end in ("", "_low", "_high"))
            figures = {key: value, f"{key}_interval": None if None in ends else ends}
            summary |= {f"{name}_{when}": figure for name, figure in figures.items() if figure is not None}
        summary[f"eval_{when}"] = evaluation | {"examples": list(examples)}
    return summary


def report(config: BaseConfig, summary: dict) -> None:
    """Write summary.json and print what a person wants to know at the end."""
    if world()[0] != 0:
        return
    folder = Path(config.output_dir)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rate = "--learning_rate" if hasattr(config, "learning_rate") else "--lr"
    summary["faults"] = faults_at_end(rows, summary, rate)
    write_text(folder / "summary.json", json.dumps(summary, indent=1, ensure_ascii=False))
    if "eval_after" in summary:
        print_held_out(summary)
    tell(f"{summary['steps']} step{'s' if summary['steps'] != 1 else ''} in {summary['seconds']:.0f} s")
    if summary["faults"]:
        faults = "; ".join(summary["faults"])
        tell(f"something went wrong: {faults}; {in_bundle('scripts/diagnose.py')} {folder} says more")
    tell(f"curves {folder / 'curves.png'}\nmodel  {folder / 'final'}")


def print_held_out(summary: dict) -> None:
    """Print completions, or one conversation, and figures of the held-out prompts, before and after."""
    before, after = (summary[f"eval_{when}"]["examples"] for when in ("before", "after"))
    if "messages" in before[0] and "messages" in after[0]:
        print_conversations(before[0], after[0])
    else:
        for one, other in zip(before, after, strict=True):
            prompt = one["prompt"] if isinstance(one["prompt"], str) else one["prompt"][-1]["content"]
            tell(f"  {prompt[-60:]!r:16} before {one['completion'][-60:]!r:32} after {other['completion'][-60:]!r}")
    for key, (name, form) in HELD_OUT.items():
        if f"{key}_before" in summary:
            figures = (with_interval(summary, key, form, when) for when in ("before", "after"))
            tell(f"held-out {name} {' -> '.join(figures)}", end=", ")


def print_conversations(before: dict, after: dict) -> None:
    """Print two conversations, a line for each message and the tools that it calls."""
    for when, conversation in (("before", before), ("after", after)):
        tell(f"held-out conversation {when}, score {conversation['score']:.4g}")
        for message in conversation["messages"]:
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            said = [f"calls {call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}" for call in calls]
            text = " ".join(" ".join([str(message.get("content") or ""), *said]).split())
            tell(f"  {message['role']:9}  {text if len(text) <= LINE else f'{text[:LINE]}…'}")


def with_interval(summary: dict, key: str, form: str, when: str) -> str:
    """A figure of the summary, and its interval where there is one."""
    ends = summary.get(f"{key}_interval_{when}")
    return format(summary[f"{key}_{when}"], form) + (f" ({ends[0]:{form}} to {ends[1]:{form}})" if ends else "")


# -------------------------------------------------------------------------- run check (src/parts/running/run_check.py)

DIAGNOSE = BUNDLE / "scripts" / "diagnose.py"
LIMIT_S = 60
BROKEN = 999  # stands beside the numbers of signals: --stop_when broken ended the run


def check_stop_when(stop_when: str) -> None:
    """Raise UserError for --stop_when broken without the script that judges."""
    got = f"got --stop_when broken without {DIAGNOSE}; expected it there"
    need(stop_when != "broken" or DIAGNOSE.is_file(), f"{got}; try --stop_when never")


def say_stopped(signum: int, step: int) -> int:
    """Say what ended a run that is saved, a signal or --stop_when broken; returns the exit code, 128 + n or 1."""
    if signum == BROKEN:
        say(f"stopped after step {step}, because diagnose.py calls the run broken; continue with --resume")
        return 1
    say(f"stopped by signal {signum} after step {step}; continue with --resume")
    return 128 + signum


class Verdicts:
    """diagnose.py's verdicts on a run. A certain cause is said once: where it is found twice running, or ends the run.

    A young run may look by chance as if it had one.
    """

    def __init__(self, folder: Path):
        self.folder, self.cause, self.said = folder, "", ""  # the last cause found, and the last one said

    def is_broken(self, step: int) -> bool:
        """Whether the run is broken after this step; False where diagnose.py cannot tell."""
        command = [sys.executable, str(DIAGNOSE), str(self.folder), "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
            judged = json.loads(done.stdout)["runs"][0]
        except (subprocess.TimeoutExpired, OSError, ValueError, LookupError):
            return False
        cause = next((cause for cause in judged.get("causes", ()) if cause["certainty"] == "certain"), {"cause": ""})
        name, again = cause["cause"], cause["cause"] == self.cause
        broken, self.cause = bool(name) and judged["verdict"] == "broken", name
        if name and name != self.said and (again or broken):
            evidence = cause["evidence"][0]["text"]
            say(f"step {step}: {judged['verdict']}, {name}: {cause['says']} ({evidence}). To change: {cause['change']}")
            self.said = name
        return broken


# ---------------------------------------------------------------------------- progress (src/parts/running/progress.py)

LOGGED = 8  # samples of a step or an evaluation
COLUMN_LENGTH = 500  # characters of a row's column in samples.jsonl


def reward_means(samples: list[dict]) -> dict[str, float]:
    """Mean of each reward function over the samples to which it applies."""
    means = {}
    for name in samples[0]["rewards"]:
        values = [s["rewards"][name] for s in samples if s["rewards"][name] is not None]
        means |= {name: sum(values) / len(values)} if values else {}
    return means


def forget_after(path: Path, step: int) -> None:
    """Drop lines of later steps, and a torn last line, from a JSONL file that a resumed run will write again."""
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else ():
        with contextlib.suppress(ValueError):
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    if path.exists():
        write_text(path, "".join(kept))


def metric_names(text: str) -> dict[str, str]:
    """{name in the user's file: ours} of --metric_names; {} for all under our names."""
    pairs = [pair.partition("=") for pair in text.replace(" ", ",").split(",") if pair]
    fine = all(user_name and equals and ours for user_name, equals, ours in pairs)
    need(fine, f"got --metric_names {text}; expected NAME=METRIC, comma-separated, such as reward=reward/mean")
    once = len({"step", *(user_name for user_name, _, _ in pairs)}) == 1 + len(pairs)
    need(once, f"got --metric_names {text}; expected each name once, and no 'step', which is there already")
    return {user_name: ours for user_name, _, ours in pairs}


def begin_metrics_file(config: BaseConfig, start: int) -> dict[str, str]:
    """Make --metrics_file, or cut a resumed run's after step `start`; returns its names. UserError for another file."""
    names, path = metric_names(config.metric_names), Path(config.metrics_file)
    need(
        config.metrics_file or not names, "got --metric_names alone; expected a file for them; try --metrics_file FILE"
    )
    if config.metrics_file:
        is_of_run = path.resolve() in [Path(config.output_dir, name).resolve() for name in (*WRITTEN, "config.json")]
        need(
            not is_of_run,
            f"got --metrics_file {path}, a file of the run itself; expected another; try a name of your own",
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            got = f"got --metrics_file {path} ({error.strerror})"
            raise UserError(f"{got}; expected a file to write to; try another --metrics_file") from None
        fits = not text or (config.resume and text.startswith('{"step":'))
        got = f"got --metrics_file {path}, which is not empty"
        need(fits, f"{got}; expected a new file, or with --resume this run's; try another --metrics_file")
        forget_after(path, start)
        if not path.stat().st_size:
            path.unlink()
    return names


def open_tracker(name: str, config: BaseConfig, start: int):
    """Return (log(metrics, step), close()) of an experiment tracker."""
    settings, folder, more = dataclasses.asdict(config), Path(config.output_dir), {}
    try:
        if name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(folder / "tensorboard", purge_step=start + 1 if start else None)
            return lambda metrics, step: [writer.add_scalar(k, v, step) for k, v in metrics.items()], writer.close
        if name == "wandb":
            run_id = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]  # the same when resumed
            more = {"id": run_id, "dir": folder}
        tracker = importlib.import_module(name)
        run = tracker.init(project="rl-training", name=folder.name, config=settings, resume="allow", **more)
        return lambda metrics, step: run.log(metrics, step=step), run.finish
    except ImportError:
        raise UserError(f"got --report_to {name}, which is not installed; try `pip install {name}`") from None
    except Exception as error:
        raise UserError(f"got --report_to {name}, which does not start: {error}; try its offline mode") from error


class RunLog:
    """Writes metrics.jsonl, samples.jsonl, curves.png and trackers on rank 0; does nothing elsewhere.

    A resumed run goes on from step `start`, -1 for a new one.
    """

    def __init__(self, config: BaseConfig, start: int, steps: int, report_to: list[str]):
        self.config, self.dir, self.active = config, Path(config.output_dir), world()[0] == 0
        self.trackers, self.bar, self.verdicts = [], None, Verdicts(self.dir)
        if not self.active:
            return
        from tqdm import tqdm

        for name in ("metrics.jsonl", "samples.jsonl"):
            forget_after(self.dir / name, start)
        self.names = begin_metrics_file(config, start)
        start = max(start, 0)
        self.trackers = [open_tracker(name, config, start) for name in report_to]
        wait = 0.5 if sys.stderr.isatty() else 20
        self.bar = tqdm(total=steps, initial=start, mininterval=wait, maxinterval=wait, dynamic_ncols=True)

    def metrics(self, step: int, metrics: dict) -> None:
        """Append one line to metrics.jsonl, and tell the trackers and who watches."""
        if not self.active:
            return
        rounded = {k: float(f"{v:.7g}") for k, v in metrics.items()}
        with (self.dir / "metrics.jsonl").open("a", encoding="utf-8") as f:
            f.write(json.dumps({"step": step, **rounded}) + "\n")
        if self.config.metrics_file:
            self.in_own_names(step, {k: v for k, v in rounded.items() if not k.startswith("eval/")})
        for track, _ in self.trackers:
            track(metrics, step)
        self.show(step, metrics)
        for key, name, form in (("accuracy", "accuracy", ".3f"), ("reverse_kl", "reverse KL", ".4f")):
            if f"eval/{key}" in metrics:
                value, low, high = (metrics.get(f"eval/{key}{end}") for end in ("", "_low", "_high"))
                interval = "" if low is None else f" (95%: {low:{form}} to {high:{form}})"
                self.bar.write(f"step {step}: held-out {name} {value:{form}}{interval}", file=sys.stderr)

    def in_own_names(self, step: int, metrics: dict) -> None:
        """Append one line to --metrics_file for an update: `step`, and the metrics of --metric_names or all."""
        path = Path(self.config.metrics_file)
        wrong = next((name for name in self.names.values() if metrics and name not in metrics), "")
        if wrong and not path.exists():  # a step without an update lacks some, too
            known = f"step {step} has {', '.join(metrics)}{suggest(wrong, [*metrics])}"
            say(f"warning: --metric_names has {wrong}, written as null; {known}")
        if metrics:
            chosen = {user_name: metrics.get(name) for user_name, name in self.names.items()} or metrics
            with path.open("a", encoding="utf-8") as f:
                f.write(json.dumps({"step": step, **chosen}) + "\n")

    def show(self, step: int, metrics: dict) -> None:
        """Move the bar to a step, with the reward and the speed where it is measured, or the KL to the teacher."""
        if "reward/mean" in metrics:
            speed = metrics.get("rollout/tokens_per_s")
            pace = "" if speed is None else f", {speed:.0f} tokens/s"
            self.bar.set_postfix_str(f"reward {metrics['reward/mean']:.3f}{pace}", refresh=False)
        elif "time/update" in metrics:
            self.bar.set_postfix_str(f"KL {metrics.get('kl/teacher', math.nan):.3f}", refresh=False)
        self.bar.update(step - self.bar.n)

    def samples(self, step: int, kind: str, samples: list[dict]) -> None:
        """Append a few samples to samples.jsonl."""
        if not self.active:
            return
        with (self.dir / "samples.jsonl").open("a", encoding="utf-8", errors="backslashreplace") as f:
            for s in samples[:LOGGED]:
                entry = {k: s[k] for k in SAMPLE_KEYS if k in s}
                columns = s.get("columns", {}).items()  # gold answers; long texts are in the data
                kept = {k: v for k, v in columns if isinstance(v, (str, int, float)) and len(str(v)) <= COLUMN_LENGTH}
                entry |= {"columns": kept} if kept else {}
                entry = {"step": step, "kind": kind, **entry}
                f.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n")

    def judge(self, step: int, steps: int, stop: StopRequest) -> None:
        """Say what is wrong with the run, at steps 3, 10, 30 … and the last; end it where --stop_when asks for that."""
        if self.active and (is_asked(step) or step == steps):
            if self.verdicts.is_broken(step) and self.config.stop_when == "broken":
                stop.signum = stop.signum or BROKEN

    def plot(self) -> None:
        """Draw curves.png from metrics.jsonl, if there is one."""
        if self.active and (self.dir / "metrics.jsonl").exists():
            plot_curves(self.dir / "metrics.jsonl", self.dir / "curves.png")

    def close(self) -> None:
        if self.active:
            self.bar.close()
            for _, close in self.trackers:
                close()


def seed_generators(config: BaseConfig) -> None:
    """Seed all generators, for new adapters and the user's rewards; training itself draws from seeds and steps."""
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):
        set_seed(config.seed)


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps (0: never) happens after this one."""
    return bool(every) and step % every == 0


def is_asked(step: int) -> bool:
    """Whether a run is judged after this step: 3, 10, 30, 100, 300 …"""
    return step >= 3 and str(step).rstrip("0") in ("1", "3")


def is_sampled(step: int, every: int) -> bool:
    """Whether samples of a step are logged: as often as asked, and of steps 1 and 3, which show most faults."""
    return is_due(step, every) or (bool(every) and step in (1, 3))


# ----------------------------------------------------------------- paired tests (src/parts/evaluating/paired_tests.py)

Z95, Z_POWER = 1.959963984540054, 0.8416212335729143  # normal quantiles of 97.5 % and of 80 % power


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927); exact ends for 0 and n successes."""
    z, p = Z95, successes / n
    shrink = 1 + z * z / n
    middle = (p + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def accuracy_figures(samples: list[dict]) -> dict[str, float]:
    """eval/accuracy, the share of samples with full marks (1 or more) from the first reward, and its 95 % interval."""
    values = [next(iter(s["rewards"].values())) for s in samples]
    right = sum(value is not None and value >= 1.0 for value in values)
    low, high = wilson_interval(right, len(samples))
    return {"eval/accuracy": right / len(samples), "eval/accuracy_low": low, "eval/accuracy_high": high}


def held_out_figures(samples: list[dict], lengths: list[int], rows: list[dict]) -> dict[str, float]:
    """Metrics eval/…: mean of each reward and of the score, accuracy, length, rows; of conversations turns, calls."""
    figures = {f"eval/{name}": mean for name, mean in reward_means(samples).items()} | accuracy_figures(samples)
    if scores := known_scores(samples):
        figures["eval/score"] = statistics.fmean(scores)
    figures |= {"eval/length_mean": statistics.fmean(lengths), "eval/rows": len(samples)} | overlap_metric(rows)
    if "talk" in samples[0]:
        played = play_metrics([s["talk"] for s in samples])
        figures |= {"eval/turns_mean": played["rollout/turns_mean"], "eval/calls_mean": played["tool/calls_mean"]}
    return figures


# ---------------------------------------------------------------------- settings (src/programs/grpo_train/settings.py)


@in_order(
    profile="",
    max_prompt_length="chat_template_kwargs",
    environment="reward_retries",
    learning_rate="entropy_coef",
    gradient_checkpointing="attn_implementation",
    logging_steps="report_to",
    per_device_eval_batch_size="allow_overlap",
)
@dataclass
class Config(TrainerSettings, ConversationSettings):
    """Settings and defaults; every field is a flag and a key of --config. Names are TRL's where it has them."""

    # model and data
    profile: str = setting(
        "", "ready settings; other flags win over it", ["memory", "fast", "cpu"], free=True, section="model and data"
    )
    max_prompt_length: int = setting(512, "longer prompts are left out, and counted; in tokens", positive=True)
    reward: list[str] = setting([], "FILE.py:function[*weight] or a library's name, repeatable; first: eval/accuracy")
    output_dir: str = setting("runs/grpo", "folder for logs, checkpoints and final/", free=True)
    # rollout
    steps: int = setting(100, "optimizer steps (TRL: max_steps)", free=True, section="rollout")
    num_train_epochs: float = setting(0.0, "passes over the data, in place of --steps (0: off)", free=True)
    num_generations: int = setting(8, "completions per prompt: the group")
    per_device_train_batch_size: int = setting(
        0, "completions per forward pass (0: 128 below 50M parameters, else 8)", free=True
    )
    gradient_accumulation_steps: int = setting(
        0, "forward passes per step (0: 1 below 50M parameters, else 8)", free=True
    )
    steps_per_generation: int = setting(0, "forward passes per rollout (0: gradient_accumulation_steps)")
    num_iterations: int = setting(1, "optimization passes over each rollout", positive=True)
    max_completion_length: int = setting(256, "longest completion, in tokens", positive=True)
    temperature: float = setting(1.0, "sampling temperature", positive=True)
    top_p: float = setting(1.0, "nucleus sampling; below 1 the sampler is not the policy of the loss", positive=True)
    top_k: int = setting(0, "top-k sampling (0: off); as top_p")
    use_vllm: str = setting("", "sample with vLLM, in this process or from a server", ["colocate", "server"])
    vllm_gpu_memory_utilization: float = setting(0.3, "colocate: vLLM's share of GPU memory", positive=True, free=True)
    vllm_enable_sleep_mode: bool = setting(False, "vLLM releases its memory during updates", free=True)
    vllm_server_base_url: str = setting("", "address of a running vLLM server (default: 0.0.0.0:8000)", free=True)
    # algorithm
    loss_type: str = setting(
        "dapo",
        "form of the loss",
        ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"],
        section="algorithm",
    )
    importance_sampling_level: str = setting("token", "ratio per token, or per sequence (GSPO)", ["token", "sequence"])
    epsilon: float = setting(0.2, "the ratio is clipped below at 1 - this", positive=True)
    epsilon_high: float = setting(0.0, "the ratio is clipped above at 1 + this (0: epsilon; DAPO 0.28, cispo 5)")
    beta: float = setting(0.0, "weight of the KL to the reference; 0 loads no reference")
    scale_rewards: str = setting("group", "what the advantage is divided by", ["group", "batch", "none"])
    mask_truncated_completions: bool = setting(False, "truncated completions contribute no gradient")
    # optimization
    learning_rate: float = setting(
        0.0, "0: 5e-4 below 50M parameters, else 1e-6; with LoRA ten times that", section="optimization"
    )
    lr_scheduler_type: str = setting("linear", "shape after warm-up: linear, cosine, constant_with_warmup, …")
    warmup_steps: float = setting(0.0, "steps over which the learning rate rises; below 1, a share of all steps")
    optim: str = setting("adamw_torch_fused", "optimizer, by transformers' name")
    max_grad_norm: float = setting(1.0, "gradient clipping")
    # precision and memory
    dtype: str = setting(
        "",
        "dtype of the weights (default: float32, LoRA: as --precision)",
        ["auto", "float32", "bfloat16", "float16"],
        section="precision and memory",
    )
    use_cpu: bool = setting(False, "train on the CPU even if there is a GPU", free=True)
    gradient_checkpointing: str = setting("auto", "recompute activations; auto: on GPUs", ["auto", "true", "false"])
    merge_lora: bool = setting(False, "merge the adapters into final/; they stay beside it in final/adapter", free=True)
    save_dtype: str = setting(
        "checkpoint", "dtype of final/: --model's (bf16 loses small changes) or fp32", ["checkpoint", "fp32"], free=True
    )
    # logs and checkpoints
    logging_steps: int = setting(1, "steps between lines of metrics.jsonl", positive=True, free=True)
    per_device_eval_batch_size: int = setting(0, "held-out prompts sampled at once (0: as in a rollout)", free=True)
    save_steps: int = setting(50, "steps between checkpoints, raised to whole rollouts (0: only at a stop)", free=True)
    save_total_limit: int = setting(2, "newest checkpoints to keep", positive=True, free=True)
    trainer_args: list[str] = setting([], "key=value …: any other field of TRL's GRPOConfig", several=True)

    def __post_init__(self):
        self.chat = self.chat or bool(self.environment)  # a conversation begins with a user's turn

    @property
    def max_new_tokens(self) -> int:
        """The bound of an answer, by the name that the parts read."""
        return self.max_completion_length

    @property
    def max_prompt_tokens(self) -> int:
        """The bound of a prompt, by the name that the parts read."""
        return self.max_prompt_length


PROFILES = {
    # one GPU of 16 to 24 GB: up to about 3B parameters, 7B with --load_in_4bit
    "memory": {
        "lora_rank": 16,
        "precision": "bf16",
        "gradient_checkpointing": "true",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 16,
    },
    # GPUs of 80 GB with vLLM in the same process
    "fast": {
        "use_vllm": "colocate",
        "vllm_enable_sleep_mode": True,
        "vllm_gpu_memory_utilization": 0.5,
        "precision": "bf16",
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "max_completion_length": 1024,
    },
    # what the smoke tests use
    "cpu": {
        "use_cpu": True,
        "precision": "fp32",
        "gradient_checkpointing": "false",
        "per_device_train_batch_size": 64,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 48,
    },
}

# fields of TRL's config that this file sets itself: what to use
SET_HERE = {
    "max_steps": "--steps",
    **dict.fromkeys(("bf16", "fp16"), "--precision"),
    **dict.fromkeys(("eval_strategy", "eval_steps", "do_eval", "eval_on_start"), "--eval_data and --eval_every"),
    "activation_checkpointing": "--gradient_checkpointing",
    "resume_from_checkpoint": "--resume",
    "reward_weights": "--reward FILE.py:f*0.5",
    "vllm_mode": "--use_vllm",
    "save_strategy": "--save_steps",
    "generation_batch_size": "--steps_per_generation",
    "auto_find_batch_size": "--profile memory",
    "data_seed": "--seed",
    "shuffle_dataset": "leaving it out: each pass over the prompts has an order of its own",
    "max_tool_calling_iterations": "--max_turns, which is one more",
    **dict.fromkeys(("remove_unused_columns", "num_generations_eval"), "leaving it out"),
    **dict.fromkeys(("load_best_model_at_end", "disable_tqdm"), "leaving it out"),
}


def parse_config(argv: list[str]) -> Config:
    """Settings of a command line: defaults, then --profile, then --config, then flags; a later one wins."""
    config = parse_settings(argv, Config, __doc__)
    for name, value in PROFILES.get(config.profile, {}).items():
        if name not in config.given:
            setattr(config, name, value)
    return config


def trainer_fields(pairs: list[str]) -> dict:
    """Read --trainer_args: key=value with a field of TRL's GRPOConfig, typed by transformers' parser."""
    if not pairs:
        return {}
    from trl import GRPOConfig

    def refuse(message: str) -> None:
        raise UserError(f"got --trainer_args {pair!r}: {message}")

    parser, values = transformers.HfArgumentParser(GRPOConfig), {}
    parser.error = refuse
    names, flags = ([f.name for f in dataclasses.fields(kind)] for kind in (GRPOConfig, Config))
    for pair in pairs:
        key, equals, text = pair.partition("=")
        flag = SET_HERE.get(key, f"--{key} {text}" if key in flags else "")
        stale = f"{suggest(key, [*names, *flags])}; or see references/grpo_trl.md, Where memory may be stale"
        if not equals or flag or key not in names:
            other = f"; try {flag}" if flag else stale
            refuse(f"expected key=value with a field of TRL's GRPOConfig that this script leaves to you{other}")
        values[key] = getattr(parser.parse_args([f"--{pair}"]), key)
        if text.startswith("{"):
            try:
                values[key] = json.loads(text)
            except ValueError as error:
                refuse(f"expected JSON: {error}")
    return values


def check_settings(config: Config) -> None:
    """Raise UserError for settings that cannot be right, whatever the model."""
    c = config
    check_values(c, "model", "data", "output_dir", "prompt_column")
    check_idle(c, bool(c.environment))
    check_room(c, c.max_prompt_length)
    need(c.steps or c.num_train_epochs, "got --steps 0; expected 1 or more")
    need(c.lora_rank or not c.load_in_4bit, "got --load_in_4bit without adapters; try --lora_rank 16")
    need(c.lora_rank or not c.merge_lora, "got --merge_lora without adapters; try --lora_rank 16")
    need(c.top_p <= 1, f"got top_p {c.top_p}; expected at most 1; try 0.95")
    idle = c.vllm_args and c.use_vllm != "colocate"
    need(not idle, "got --vllm_args without vLLM in this process; try --use_vllm colocate, or the server's own flags")
    missing = [name for name in c.report_to if not importlib.util.find_spec(name)]
    need(not missing, f"got --report_to {', '.join(missing)}, not installed; try `pip install {' '.join(missing)}`")


def check_machine(config: Config) -> None:
    """Raise UserError for settings that need hardware or packages that are not there."""
    gpu = torch.cuda.is_available() and not config.use_cpu
    if config.use_vllm:
        other = f"try `{VLLM_PIP}`, or leave --use_vllm (or --profile fast) out to sample with transformers"
        need(importlib.util.find_spec("vllm"), f"got --use_vllm {config.use_vllm}, but vLLM is not installed; {other}")
        served = config.use_vllm == "server"  # TRL's transfer of weights to it is CUDA's
        need(gpu or not served, "got --use_vllm server without a GPU; expected CUDA; try --use_vllm colocate")
    fp16 = config.precision == "fp16"
    need(gpu or not fp16, "got --precision fp16 on a CPU; expected fp32 or bf16; try --precision fp32")
    if config.attn_implementation == "flex_attention" and not gpu:
        raise refuse_attention(config, config.model, "it has no backward pass on a CPU")
    if "8bit" in config.optim and not (gpu and importlib.util.find_spec("bitsandbytes")):
        got = f"got --optim {config.optim}; expected CUDA and `pip install bitsandbytes`"
        raise UserError(f"{got}; try --optim adamw_torch_fused")


def fill_in(config: Config, parameters: int) -> Config:
    """Fill in the settings that follow from the model's size and from one another."""
    tiny = parameters < 50e6
    return dataclasses.replace(
        config,
        learning_rate=config.learning_rate or default_learning_rate("trl_policy", parameters, bool(config.lora_rank)),
        per_device_train_batch_size=config.per_device_train_batch_size or (128 if tiny else 8),
        gradient_accumulation_steps=config.gradient_accumulation_steps or (1 if tiny else 8),
    )


# ------------------------------------------------------------------------------ data (src/programs/grpo_train/data.py)


def left_tokenizer(config: Config):
    tokenizer = open_tokenizer(config, padding_side="left", truncation_side="left")
    need(tokenizer.eos_token_id is not None, f"got model {config.model!r} without an end token; expected eos_token")
    return tokenizer


@dataclass
class BatchPlan:
    """How steps, rollouts and prompts divide; all counts are over all processes."""

    completions_per_rollout: int
    prompts_per_rollout: int
    completions_per_step: int
    steps_per_rollout: int  # optimizer steps, rounded up to whole rollouts
    rollouts: int
    steps: int


def plan_batches(config: Config, world_size: int, prompts: int) -> BatchPlan:
    """Batch arithmetic of a resolved config; raises UserError where something does not divide."""
    batch, group = config.per_device_train_batch_size, config.num_generations
    forward = batch * world_size  # completions in one forward pass of all processes
    passes = config.steps_per_generation or config.gradient_accumulation_steps
    rollout = forward * passes
    unit = group // math.gcd(group, world_size * passes)
    fitting = math.ceil(batch / unit) * unit
    got = f"got per_device_train_batch_size {batch} x processes {world_size} x steps_per_generation {passes}"
    expected = f"expected whole groups, a multiple of num_generations {group}"
    whole = rollout % group == 0
    need(whole, f"{got} = {rollout} completions a rollout; {expected}; try --per_device_train_batch_size {fitting}")
    accumulation, micro = config.gradient_accumulation_steps, passes * config.num_iterations
    got = f"got steps_per_generation {passes} x num_iterations {config.num_iterations}"
    together = micro % accumulation == 0 or accumulation % micro == 0
    need(together, f"{got}; expected a multiple of gradient_accumulation_steps {accumulation}, or a divisor of it")
    steps = config.steps
    if config.num_train_epochs:
        updates = prompts * group * config.num_iterations / (forward * accumulation)
        steps = max(1, math.floor(updates * config.num_train_epochs))
    return BatchPlan(
        completions_per_rollout=rollout,
        prompts_per_rollout=rollout // group,
        completions_per_step=forward * accumulation,
        steps_per_rollout=max(1, micro // accumulation),
        rollouts=math.ceil(steps * accumulation / micro),
        steps=steps,
    )


def prompt_order(config: Config, count: int, length: int) -> list[int]:
    """Row numbers of the first `length` prompts: endless passes over the rows, each in an order of its own.

    TRL shuffles each pass from a generator that a resume starts anew, drops each pass's tail, and does not train on
    fewer prompts than a rollout needs. One long list does none of that: a resume goes on where the run was.
    """
    return batch_rows(range(count), config, 0, length)


OPTIONAL = ("steps_per_generation", "epsilon_high", "vllm_server_base_url")  # 0 or "" here is None there
OTHERWISE = ("num_train_epochs", "gradient_checkpointing")  # names of TRL's with another meaning or default there


def trl_settings(config: Config, steps: int) -> dict:
    """Arguments of TRL's GRPOConfig for a resolved config."""
    from trl import GRPOConfig

    gpu = torch.cuda.is_available() and not config.use_cpu
    device = torch.device("cuda" if gpu else "cpu")
    precision = precision_on(config.precision, device)
    warn_of_slow_precision(precision, device)
    compute = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[precision]
    checkpointing = config.gradient_checkpointing == "true" or (config.gradient_checkpointing == "auto" and gpu)
    names = {f.name for f in dataclasses.fields(GRPOConfig)} - {*OTHERWISE}
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name in names}
    settings |= {name: getattr(config, name) or None for name in OPTIONAL}
    settings |= {
        "output_dir": str(Path(config.output_dir) / "checkpoints"),
        "max_steps": steps,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": not gpu,
        "dataloader_pin_memory": gpu,
        "activation_checkpointing": checkpointing,  # TRL still lists the older name, gradient_checkpointing
        "use_vllm": bool(config.use_vllm),
        "vllm_mode": config.use_vllm or "colocate",
        "save_strategy": "steps" if config.save_steps else "no",
        "save_steps": config.save_steps or 500,
        "report_to": config.report_to or "none",
        "run_name": Path(config.output_dir).name,
        "disable_tqdm": True,
        "shuffle_dataset": False,
        "remove_unused_columns": False,  # prompt_order shuffles; rewards need their rows
    }
    if config.use_vllm == "colocate":
        settings["vllm_max_model_length"] = config.conversation_tokens
    settings["model_init_kwargs"] = {"dtype": config.dtype or (compute if config.lora_rank else "float32")}
    settings["model_init_kwargs"] |= attention_choice(config)
    extra = trainer_fields(config.trainer_args)
    settings["chat_template_kwargs"] = template_settings(config)
    settings["model_init_kwargs"] |= extra.pop("model_init_kwargs", None) or {}
    return settings | extra


def trl_config(config: Config, steps: int):
    """TRL's GRPOConfig; what it refuses is told as a UserError."""
    from trl import GRPOConfig

    try:
        return GRPOConfig(**trl_settings(config, steps))
    except (ValueError, TypeError, ImportError) as error:
        raise UserError(f"TRL refuses these settings: {error}") from error


# ------------------------------------------------------------------------ rewards (src/programs/grpo_train/rewards.py)


def environment_score(rows: list[dict]) -> list[float | None]:
    """The environments' own scores of conversations, known once these were played; None where there is none."""
    return [row["talk"].score for row in rows]


class Scorer(Reward):
    """The reward functions, as TRL calls them, and what they said of the latest rollout.

    TRL sees one function per name and one column, `row`: the number of the row in `rows`. So rewards get the values of
    the file itself, not what a table with one type per column would have made of them.
    """

    def __init__(self, rows: list[dict], specs: list[str], limits: CallLimits | None = None):
        super().__init__(specs, limits)
        self.others = (*TRL_EXTRAS, "environments")
        self.rows, self.tokenizer, self.eos_ids = rows, None, []  # make_trainer gives the last two
        self.latest, self.seconds, self.none_in_a_row = {}, 0.0, 0
        self.heard = None  # (rows, messages) of the latest conversations, where completions are conversations

    def for_trl(self) -> list[Callable]:

        def named(name: str) -> Callable:
            def reward(prompts, completions, **given):
                return self.scored(name, completions, **given)

            reward.__name__ = name
            return reward

        return [named(name) for name in self.functions]

    def scored(self, name: str, completions: list, completion_ids: list, row: list[int], **extra) -> list:
        """Score a rollout in training and remember it."""
        begin = time.perf_counter()
        if self.latest.get("completion_ids") is not completion_ids:
            rows = [self.rows[i] for i in row]
            said = as_completions(self.tokenizer, rows, completion_ids, self.eos_ids) if not self.heard else None
            seen, said = self.heard or (rows, said)
            self.latest = {"completion_ids": completion_ids, "completions": said, "rows": seen, "rewards": {}}
        values = self.score(name, self.latest["rows"], self.latest["completions"], completion_ids, extra)
        self.latest["rewards"][name] = values
        self.seconds += time.perf_counter() - begin
        return values

    def score(self, name: str, rows: list[dict], completions: list, completion_ids: list, extra: dict) -> list:
        """Floats and None of one function; an exception names function, row and completion."""
        function = self.functions[name]
        if function is environment_score:
            return environment_score(rows)
        results = raw_results({name: function}, rows, completions, completion_ids, self.limits, **extra)
        return checked_scores(name, results[name], rows, completions)

    def as_samples(self, rows: list[dict], completions: list, ids: list[list[int]], rewards: dict) -> list[dict]:
        samples = []
        for i, row in enumerate(rows):
            parts = {name: values[i] for name, values in rewards.items()}
            sample = {"prompt": row["prompt"], "completion": text_of_turns(completions[i]), "rewards": parts}
            score = sum(self.weights[name] * value for name, value in parts.items() if value is not None)
            sample |= {"score": score, "length": len(ids[i]), "columns": row["columns"]}
            samples.append(sample | {"finished": bool(ids[i]) and ids[i][-1] in self.eos_ids})
        return samples

    def samples(self) -> list[dict]:
        seen = self.latest
        return self.as_samples(seen["rows"], seen["completions"], seen["completion_ids"], seen["rewards"])

    def state_dict(self) -> dict:
        """State of the functions that have one, such as AdaptiveReward."""
        return {name: f.state_dict() for name, f in self.functions.items() if hasattr(f, "load_state_dict")}

    def load_state_dict(self, states: dict) -> None:
        for name, state in states.items():
            self.functions[name].load_state_dict(state)


def signal_free(scores: list[float], group: int) -> float:
    """Share of groups whose completions all score the same, so that they teach nothing.

    TRL's frac_reward_zero_std asks for a standard deviation below 1e-8, which rounding alone exceeds: eight scores of
    1.2 have 1.3e-7 in float32.
    """
    spread = [max(scores[i : i + group]) - min(scores[i : i + group]) for i in range(0, len(scores), group)]
    return sum(s < 1e-6 for s in spread) / len(spread)


def as_completions(tokenizer, rows: list[dict], ids: list[list[int]], eos_ids: list[int]) -> list:
    """Completions in the form in which rewards get them: text, or a message where the row's prompt is chat.

    A message is what the tokenizer's own template or schema of responses makes of it, if it has one.
    """
    from trl.chat_template_utils import parse_response

    parsed = any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))
    made = []
    for row, token_ids in zip(rows, ids, strict=True):
        text = visible_text(tokenizer, token_ids, eos_ids)
        if isinstance(row["prompt"], str):
            made.append(text)
        else:
            made.append([parse_response(tokenizer, token_ids) if parsed else {"role": "assistant", "content": text}])
    return made


def load_scorer(config: Config, rows: list[dict]) -> Scorer:
    """The reward functions of a run."""
    specs = config.reward if config.environment else specs_for(config.data, config.reward)
    scorer = Scorer(rows, specs, call_limits(config))
    try:
        json.dumps(scorer.state_dict())
    except TypeError as error:
        raise UserError(f"got a state_dict that is not JSON ({error}); expected numbers, text, lists") from error
    return scorer


# ------------------------------------------------------------------ evaluation (src/programs/grpo_train/evaluation.py)


def let_environments_score(config: Config, environments: Environments, scorer: Scorer) -> None:
    """Put the environments' own score beside the rewards, with weight 1; refuse what nothing pays."""
    check_environments(config, environments, scorer.functions)
    kinds = environments.kinds.values()
    if not any(map(pays, kinds)):
        return
    scorer.functions |= {OF_ENVIRONMENT: environment_score}
    scorer.weights |= {OF_ENVIRONMENT: 1.0}
    if any(kind.scores for kind in kinds):  # then it comes first: it is what a held-out row's full marks are
        scorer.functions = {OF_ENVIRONMENT: environment_score} | scorer.functions


def check_sampling_apart(trainer) -> None:
    """Raise UserError where all processes sample together: their conversations have different numbers of turns."""
    plugin = trainer.accelerator.state.deepspeed_plugin
    together = {
        "FSDP": trainer.is_fsdp_enabled,
        "DeepSpeed ZeRO-3": plugin is not None and plugin.zero_stage == 3,
        "--use_vllm server": trainer.use_vllm and trainer.vllm_mode == "server",
        "vllm_tensor_parallel_size": trainer.use_vllm and trainer.vllm_tensor_parallel_size > 1,
    }
    reasons = [name for name, given in together.items() if given and world()[1] > 1]
    got = f"got conversations with {', '.join(reasons)} and {world()[1]} processes, which then sample together"
    need(not reasons, f"{got}; expected each by itself; try plain data parallelism, ZeRO-2, or --use_vllm colocate")


def rollout_function(setup: PlaySetup, scorer: Scorer) -> Callable:
    """TRL's rollout_func: play a conversation for each prompt, sampled by TRL's trainer.

    TRL hands it nothing of a row but the prompt, so the data set's prompts are the numbers of rows.
    """

    def rollout(prompts: list[str], trainer) -> dict:
        def sample(so_far: list[list[int]], numbers: list[int], turn: int) -> list[tuple[list[int], list[float]]]:
            ids, logprobs = trainer._generate_single_turn(so_far, None, {}, 1)  # as TRL's own loop of tools does
            return list(zip(ids, logprobs or [[0.0] * len(answer) for answer in ids], strict=True))

        rows = [scorer.rows[int(prompt)] for prompt in prompts]
        conversations = play(rows, setup, sample)
        scorer.heard = heard(rows, conversations)
        return {
            "prompt_ids": [c.prompt_ids for c in conversations],
            "completion_ids": [c.response_ids for c in conversations],
            "logprobs": [c.rollout_logprobs for c in conversations] if trainer.use_vllm else None,
            "env_mask": [c.response_mask for c in conversations],
        }

    return rollout


def heard(rows: list[dict], conversations: list[Conversation]) -> tuple[list[dict], list[list[dict]]]:
    """Rows as rewards see them, with their conversation, and the messages."""
    seen, messages = as_rewards_see(rows, conversations)
    return [{**row, "talk": conversation} for row, conversation in zip(seen, conversations, strict=True)], messages


def brief(setup: PlaySetup, conversation: Conversation) -> Conversation:
    """A conversation for metrics, as processes exchange it; finished if all of its answers ended by themselves."""
    finished = all(setup.bridge.ends(conversation.response_ids[start:end]) for start, end in conversation.spans)
    return dataclasses.replace(conversation, kind=None, environment=None, prompt="", messages=[], finished=finished)


def conversation_entry(setup: PlaySetup, conversation: Conversation) -> dict:
    """What a sample has of a conversation."""
    bridge, short = setup.bridge, brief(setup, conversation)
    answers = [conversation.response_ids[start:end] for start, end in conversation.spans]
    return {
        "prompt": conversation.prompt,
        "completion": "\n".join(visible_text(bridge.tokenizer, ids, bridge.end_ids) for ids in answers),
        "finished": short.finished,
        "length": sum(conversation.response_mask),  # what was sampled
        "ended_by": conversation.ended_by,
        "turn_rewards": conversation.turn_rewards,
        "messages": conversation.messages,
        "pieces": pieces(bridge.tokenizer, conversation),
        "talk": short,
    }


def greedy_completions(trainer, prompts: list[list[int]], batch_size: int) -> list[list[int]]:
    """Token ids of one greedy completion per prompt, by the sampler that trains."""
    ends, pad_id = trainer.eos_token_ids, trainer.processing_class.pad_token_id
    limits = {"max_new_tokens": trainer.max_completion_length, "do_sample": False, "disable_compile": True}
    greedy = {"generation_config": transformers.GenerationConfig(**limits, eos_token_id=ends, pad_token_id=pad_id)}
    owner = trainer.vllm_generation if trainer.use_vllm else trainer
    changed = {"temperature": 0.0} if trainer.use_vllm else greedy | {"generation_kwargs": {}}
    trainer.model.eval()
    completions = {}
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # a batch of like lengths has few pads
    size = len(prompts) if trainer.use_vllm else batch_size
    with mock.patch.multiple(owner, **changed):
        for start in range(0, len(prompts), max(1, size)):
            numbers = order[start : start + size]
            made = trainer._generate_single_turn([prompts[i] for i in numbers], None, {}, 1)[0]
            completions |= zip(numbers, made, strict=True)
    trainer.model.train()
    return [completions[i] for i in range(len(prompts))]


def greedy_conversations(config: Config, trainer, setup: PlaySetup, rows: list[dict]) -> list[Conversation]:
    def sample(so_far: list[list[int]], numbers: list[int], turn: int) -> list[tuple[list[int], list[float]]]:
        made = greedy_completions(trainer, so_far, config.per_device_eval_batch_size)
        return [(ids, [0.0] * len(ids)) for ids in made]

    return play(rows, setup, sample)


def evaluate(config: Config, trainer, scorer: Scorer, rows: list[dict], setup: PlaySetup | None = None) -> tuple:
    """(Metrics, samples) of a greedy held-out evaluation, of conversations if there is a `setup` to play them with.

    Accuracy is the share of rows with full marks, 1 or more, from the first function.
    """
    rank, size = world()
    share, states = rows[rank::size], scorer.state_dict()  # what adapts does so to training only
    conversations = []
    if not setup:
        same = share + rows[:1] if 0 < len(rows) % size <= rank else share  # every process samples the same number
        ids = greedy_completions(trainer, [row["prompt_ids"] for row in same], config.per_device_eval_batch_size)
        ids = ids[: len(share)]
    with raised_in_all():
        if setup:
            conversations = greedy_conversations(config, trainer, setup, share)
            ids, (share, said) = [x.response_ids for x in conversations], heard(share, conversations)
        else:
            said = as_completions(trainer.processing_class, share, ids, trainer.eos_token_ids)
        extra = TRL_EXTRAS | {"trainer_state": trainer.state}
        rewards = {name: scorer.score(name, share, said, ids, extra) for name in scorer.functions if share}
        samples = scorer.as_samples(share, said, ids, rewards)
        if setup:
            samples = [s | conversation_entry(setup, x) for s, x in zip(samples, conversations, strict=True)]
    scorer.load_state_dict(states)
    samples = gather_rows(samples)
    return held_out_figures(samples, [s["length"] for s in samples], rows), samples


# -------------------------------------------------------------------- colocated (src/programs/grpo_train/colocated.py)

BY_TRL = {  # arguments of the engine that TRL sets, and what to use for them
    **dict.fromkeys(("model", "tokenizer"), "--model"),
    "dtype": "--precision or --dtype",
    "seed": "--seed",
    "gpu_memory_utilization": "--vllm_gpu_memory_utilization",
    "max_model_len": "--max_prompt_length and --max_completion_length",
    "enable_sleep_mode": "--vllm_enable_sleep_mode",
    "enable_lora": "leaving it out: TRL merges adapters for the copy",
    "tensor_parallel_size": "--trainer_args vllm_tensor_parallel_size=2",
    "model_impl": "--trainer_args vllm_model_impl=transformers",
    "trust_remote_code": "--trainer_args trust_remote_code=true",
    **dict.fromkeys(("logprobs_mode", "distributed_executor_backend"), "leaving it out"),
}


def sampler_dtype(config: Config, args) -> str:
    """The dtype in which the trainer computes log-probs, in vLLM's words; TRL leaves vLLM to choose one."""
    if args.bf16 or args.fp16:
        return "bfloat16" if args.bf16 else "float16"
    kind = args.model_init_kwargs["dtype"]
    if kind == "auto":  # that of the saved weights, where vLLM's own auto takes bfloat16 for float32
        kind = transformers.AutoConfig.from_pretrained(base_of(config.model)).dtype or "float32"
    return str(kind).removeprefix("torch.")


@contextlib.contextmanager
def engine_arguments(config: Config, args) -> Iterator[None]:
    """While TRL builds its engine, add the dtype, the seed and --vllm_args to what it passes."""
    if config.use_vllm != "colocate":
        yield
        return
    import_vllm("--use_vllm colocate", "leaving it out")
    from trl.generation import vllm_generation

    ours = {"dtype": sampler_dtype(config, args)} | ({"enforce_eager": True} if args.use_cpu else {})
    ours |= vllm_options(config.vllm_args, BY_TRL)
    build = vllm_generation.LLM
    vllm_generation.LLM = lambda **theirs: build(**theirs | ours | {"seed": theirs["seed"] + config.seed})
    try:
        yield
    finally:
        vllm_generation.LLM = build


def sample_tokens_only(config: Config, trainer) -> None:
    """Keep TRL's sampler from rows of the embedding that are no tokens; a vLLM server is left as it is."""
    known = token_count(trainer.processing_class, trainer.eos_token_ids)
    rows = unwrapped(trainer.model).get_input_embeddings().weight.shape[0]
    if config.use_vllm == "colocate":
        cut_vocabulary(network_of(trainer.vllm_generation).get_model(), known)
    elif known < rows and not config.use_vllm:
        given = trainer.generation_config.suppress_tokens or []
        trainer.generation_config.suppress_tokens = [*given, *range(known, rows)]


def watch_copies(config: Config, trainer) -> SyncCheck | None:
    """Compare the weights of TRL's engine with the policy's after copies, as --check_sync says; None without vLLM.

    On a CPU the engine's layers are loaded anew: vLLM packs their matrices there, and TRL's own copy finds none.
    """
    if not config.use_vllm:
        return None
    watch = SyncCheck(config.check_sync, f"`{VLLM_PIP}`, or to leave --use_vllm out")
    if config.use_vllm == "colocate":  # of a server's weights only the log-probs tell
        engine = trainer.vllm_generation
        copy = functools.partial(reload_layers, engine) if trainer.args.use_cpu else engine.sync_weights
        engine.sync_weights = functools.partial(copy_and_compare, trainer, copy, watch)
    return watch


def copy_and_compare(trainer, copy: Callable, watch: SyncCheck) -> None:
    copy()
    engine, step = trainer.vllm_generation, trainer.state.global_step
    if engine.tensor_parallel_size > 1 or not watch.due(step):  # an engine on several GPUs has shards of tensors
        return
    with raised_in_all():
        watch.compare(step, with_tied_head(engine), network_of(engine).get_model())


def judge_logprobs(config: Config, args, watch: SyncCheck | None, step: int, logs: dict) -> None:
    """Raise StaleSamplerError where TRL found sampler and trainer too far apart in the mean since its last log entry.

    What top-p and the like leave of a distribution has other log-probs than the trainer's.
    """
    gap = logs.get("sampling/sampling_logp_difference/mean")
    whole = config.top_p == 1 and not config.top_k and not args.min_p and args.repetition_penalty == 1
    if watch and watch.every and gap is not None and whole and not args.generation_kwargs:
        rounded = any(pair.startswith("quantization") for pair in config.vllm_args)
        exact = config.use_vllm == "colocate" and sampler_dtype(config, args) == "float32" and not rounded
        watch.judge(step, gap, exact)


def network_of(engine):
    """What runs vLLM's model in this process."""
    return engine.llm.llm_engine.model_executor.driver_worker.model_runner


def reload_layers(engine) -> None:
    """Copy the policy's weights into TRL's engine, adapters merged, and forget cached prefixes."""
    network_of(engine).reload_weights(weights_iterator=with_tied_head(engine))
    engine.llm.reset_prefix_cache()


def with_tied_head(engine) -> Iterator[tuple]:
    """TRL's named weights, and an output layer that shares its matrix: TRL names it once, vLLM keeps a packed copy."""
    head = unwrapped(engine.model).get_output_embeddings()
    names = set()
    for name, x in engine._iter_named_params():
        names.add(name)
        yield name, x
    whole = not engine._dist.is_fsdp and head.weight.numel()  # else this process has a shard of it
    if "lm_head.weight" not in names and whole:
        yield "lm_head.weight", head.weight.data


# ---------------------------------------------------------------------- callback (src/programs/grpo_train/callback.py)


def resume_point(config: Config) -> Path | None:
    """The checkpoint to resume from, if any; refuses another run's folder and a resume with other settings."""
    saved = trainer_checkpoints(Path(config.output_dir) / "checkpoints") if check_folder(config) else {}
    if config.resume and not saved:
        say(f"warning: got --resume, but {config.output_dir} holds no complete checkpoint; starting at step 0")
    return saved[max(saved)] if saved else None


def save_as_it_came(config: Config, folder: Path) -> None:
    """Save the start's tokenizer and generation settings: TRL's tokenizer pads on the left, rollouts obey no settings.

    An adapter has no generation settings of its own.
    """
    transformers.AutoTokenizer.from_pretrained(tokenizer_of(config.model)).save_pretrained(folder)
    if (folder / "generation_config.json").exists():
        generation_settings(base_of(config.model)).to_json_file(folder / "generation_config.json")


def export_final(config: Config, trainer) -> None:
    """Write final/: the model in --save_dtype, or its adapters, or both merged; it loads with transformers."""
    raw = Path(config.output_dir) / ".final.raw"
    trainer.save_model(str(raw))  # every process: sharded weights are gathered
    trainer.accelerator.wait_for_everyone()
    if world()[0] != 0:
        return
    whole = "fsdp_state_dict_type: FULL_STATE_DICT, or DeepSpeed's stage3_gather_16bit_weights_on_model_save: true"
    need(list(raw.glob("*.safetensors")), f"got no weights from the sharded model; expected whole ones; try {whole}")

    def write(folder: Path) -> None:
        auto = transformers.AutoModelForCausalLM
        start = transformers.AutoConfig.from_pretrained(base_of(config.model))
        declared = getattr(start, "dtype", None) or trainer.model.dtype
        dtype = torch.float32 if config.save_dtype == "fp32" else declared
        if config.lora_rank:
            adapter = folder / "adapter" if config.merge_lora else folder
            adapter.mkdir(exist_ok=True)
            for file in raw.glob("adapter_*"):
                shutil.copy(file, adapter)
        if config.merge_lora or not config.lora_rank:
            merged(load_pretrained(auto, str(raw), dtype=dtype)).save_pretrained(folder)
        save_as_it_came(config, folder)

    write_folder(Path(config.output_dir) / "final", write)
    shutil.rmtree(raw)


# TRL's names of what metrics.jsonl calls otherwise; what is not here has no place there
METRICS = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "kl": "kl/ref",
    "loss": "policy/loss",
    "entropy": "policy/entropy",
    "clip_ratio/region_mean": "policy/clip_frac",
    "cispo_clip_ratio": "policy/clip_frac",
    "completions/mean_length": "rollout/length_mean",
    "completions/clipped_ratio": "rollout/truncated_frac",
    "sampling/sampling_logp_difference/max": "rollout/logprob_gap_max",
    "learning_rate": "optim/lr",
    "grad_norm": "optim/grad_norm",
    "step_time": "time/step",
}


def trl_factor(args, step: int, steps: int) -> float:
    """The multiplier of TRL's learning rate after `step` of `steps` steps; 1 for schedules that look at the loss."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    given = args.lr_scheduler_type, optimizer, args.get_warmup_steps(steps), steps, args.lr_scheduler_kwargs
    schedule = transformers.get_scheduler(*given)
    return schedule.lr_lambdas[0](step) if hasattr(schedule, "lr_lambdas") else 1.0


@dataclass
class Prepared:
    """A run with all that can be known before the weights are loaded."""

    config: Config  # resolved
    plan: BatchPlan
    tokenizer: object
    rows: list[dict]
    held_out: list[dict]
    scorer: Scorer
    parameters: int
    setup: PlaySetup | None  # what conversations are played with


class GrpoRun:
    """What happens around TRL's steps: evaluation, logs, stopping, and the state that a resume needs.

    `make_callback` gives it to the trainer as a callback whose state TRL writes into every trainer_state.json.
    """

    def __init__(self, ready: Prepared):
        self.config, self.plan, self.scorer = ready.config, ready.plan, ready.scorer
        self.held_out, self.setup = ready.held_out, ready.setup
        self.trainer = self.log = self.stop = self.watch = None
        self.kept = {"eval_before": None, "eval_after": None, "seconds": 0.0}
        sizes = [self.plan.completions_per_step, self.plan.completions_per_rollout]
        self.memory, self.pending, self.sizes = {}, {}, sizes
        self.signum, self.bad, self.started = 0, 0, time.perf_counter()
        self.step_started = self.started

    def state(self) -> dict:
        """What goes into trainer_state.json; TRL asks for it when it saves."""
        seconds = self.kept["seconds"] + time.perf_counter() - self.started
        saved = {"rewards": self.scorer.state_dict(), "sizes": self.sizes}
        return {"args": {}, "attributes": {**self.kept, "seconds": seconds, **saved}}

    def restore(self, checkpoint: Path) -> None:
        state = json.loads((checkpoint / "trainer_state.json").read_text())
        saved = state["stateful_callbacks"]["RunCallback"]["attributes"]
        self.kept = {key: saved[key] for key in self.kept}
        need(
            self.sizes == saved["sizes"],
            f"got --resume with {self.sizes} completions a step and a rollout; expected {saved['sizes']}, as the run "
            "has; try as many --gradient_accumulation_steps more as --per_device_train_batch_size is smaller",
        )
        self.scorer.load_state_dict(saved["rewards"])
        kind, factor = self.config.lr_scheduler_type, functools.partial(trl_factor, self.trainer.args)
        after = state["global_step"] + 1  # the next step's rate is in the checkpoint
        note_schedule(f"lr_scheduler_type {kind}", factor, after, state["max_steps"], self.plan.steps)

    def held_out_evaluation(self, step: int) -> dict:
        """Evaluate, write samples, and return metrics and a few examples."""
        half, given = max(1, self.config.per_device_eval_batch_size // 2), (self.config, self.trainer, self.scorer)
        with room_for("in the evaluation", f"--resume --per_device_eval_batch_size {half}"):
            metrics, samples = evaluate(*given, self.held_out, self.setup)
        self.log.samples(step, "eval", samples)
        examples = [{k: s[k] for k in ("prompt", "completion", "score")} for s in samples[:EXAMPLES]]
        return {"metrics": metrics, "examples": examples}

    def on_train_begin(self, args, state, control, **_):
        THREADS.begin(self.config, args.device)
        if self.held_out and self.kept["eval_before"] is None:
            self.kept["eval_before"] = self.held_out_evaluation(0)
            self.log.metrics(0, self.kept["eval_before"]["metrics"])

    def on_step_begin(self, args, state, control, **_):
        forget_peak()
        self.step_started = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        """Evaluate, write samples and curves, and stop where a signal asked for it."""
        seconds = time.perf_counter() - self.step_started
        THREADS.after(seconds)
        step, config, self.memory = state.global_step, self.config, memory_metrics()
        states = self.scorer.state_dict()
        if states and world()[1] > 1:  # each process has seen its own completions only: the first one's counts
            self.scorer.load_state_dict(gather_rows([states])[0])
        last = step >= self.plan.steps
        if self.held_out and (last or is_due(step, config.eval_every)):
            self.kept["eval_after"] = self.held_out_evaluation(step)
            self.pending = self.kept["eval_after"]["metrics"]
        if is_sampled(step, config.sample_every) and self.scorer.latest:
            self.log.samples(step, "train", self.latest_samples())
        whole = step % self.plan.steps_per_rollout == 0  # TRL cannot resume inside a rollout
        self.signum = self.signum or self.stop.agreed()
        if self.signum and whole and not last:
            control.should_save = control.should_training_stop = True
        if self.pending and step % config.logging_steps:
            self.write(step, {})
        return control

    def latest_samples(self) -> list[dict]:
        """The latest rollout of this process, on the first one with TRL's advantages, which it keeps for its table."""
        samples = self.scorer.samples()
        if world()[0] == 0:
            advantages = self.trainer._logs["advantages"]  # of all processes, in their order
            rounded = (float(f"{value:.3g}") for value in advantages)
            samples = [s | {"advantage": value} for s, value in zip(samples, rounded, strict=False)]
        if self.setup:
            conversations = [row["talk"] for row in self.scorer.latest["rows"]]
            samples = [s | conversation_entry(self.setup, x) for s, x in zip(samples, conversations, strict=True)]
        return samples

    def on_save(self, args, state, control, **_):
        """Leave a checkpoint as others can read it, with the start's tokenizer."""
        if world()[0] == 0:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            save_as_it_came(self.config, folder)
            follow_umask(folder)

    def write(self, step: int, metrics: dict) -> None:
        """One line of metrics.jsonl, with an evaluation that waits for it."""
        self.log.metrics(step, metrics | self.pending)
        self.pending = {}
        if is_due(step, self.config.plot_every):
            self.log.plot()

    def on_log(self, args, state, control, logs=None, **_):
        """Write TRL's figures under our names; stop where they are not finite, or no reward applies."""
        if not logs or "loss" not in logs:
            return
        from accelerate.utils import gather_object  # in the order of the processes, as the groups lie

        step, norm = state.global_step, logs.get("grad_norm", 0.0)
        names = {key: re.sub("^rewards/(.+)/mean$", r"reward/\1", METRICS.get(key, key)) for key in logs}
        metrics = {name: logs[key] for key, name in names.items() if name != key and logs[key] is not None}
        metrics |= {"time/reward": self.scorer.seconds} | self.memory
        self.scorer.seconds, group = 0.0, self.config.num_generations
        if "reward" in logs:  # absent where the step trained on an earlier step's rollout
            scores = gather_object([sample["score"] for sample in self.scorer.samples()])
            metrics |= {"reward/zero_std_frac": signal_free(scores, group), "rollout/samples": len(scores)}
            if self.setup:
                talks = gather_object([brief(self.setup, row["talk"]) for row in self.scorer.latest["rows"]])
                cut = statistics.fmean(not talk.finished for talk in talks)  # TRL counts those whose last answer is
                metrics |= play_metrics(talks) | {"rollout/truncated_frac": cut}
            self.scorer.none_in_a_row = self.scorer.none_in_a_row + 1 if logs["reward"] is None else 0
        logs |= {key.replace("eval/", "eval_"): value for key, value in self.pending.items()}  # for the trackers
        self.bad = 0 if math.isfinite(norm) else self.bad + 1
        if self.bad >= (5 if args.fp16 else 1):  # fp16's scaler leaves such updates out while it settles
            got = f"step {step}: got a gradient norm of {norm}"
            raise DivergedError(f"{got}; expected a finite one; try a lower --learning_rate, or a higher --beta")
        self.write(step, {name: value for name, value in metrics.items() if math.isfinite(value)})
        judge_logprobs(self.config, args, self.watch, step, logs)
        self.log.judge(step, self.plan.steps, self.stop)
        refuse_unscored(self.scorer.none_in_a_row, self.plan.rollouts, {*self.scorer.functions})


def make_callback(run: GrpoRun):
    """A transformers callback that hands its events to a GrpoRun; its class is made here, as imports take seconds."""
    kinds = transformers.TrainerCallback, transformers.trainer_callback.ExportableState
    methods = {name: getattr(run, name) for name in dir(run) if name.startswith("on_") or name == "state"}
    static = {name: staticmethod(method) for name, method in methods.items()}
    return type("RunCallback", kinds, static)()


# ------------------------------------------------------------------------ trainer (src/programs/grpo_train/trainer.py)


def model_and_adapter(config: Config, args) -> tuple[object, dict]:
    """(the model's source, arguments of TRL's trainer for LoRA and 4-bit weights, where these are asked for).

    Of an adapter's folder it is the network: TRL goes on training that adapter, and keeps a copy as reference.
    """
    extra = {}
    if config.load_in_4bit:
        compute = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
        extra["quantization_config"] = nf4_config(compute)
    if adapter_settings(config.model):
        from trl.trainer.utils import create_model_from_path

        options = args.model_init_kwargs | extra | ({"device_map": None} if world()[1] > 1 else {})
        base = load_whole(create_model_from_path, base_of(config.model), **options)
        return with_adapter(base, config.model, trainable=True), {}
    if config.lora_rank:
        from peft import LoraConfig

        alpha = config.lora_alpha or 2 * config.lora_rank
        lora = LoraConfig(r=config.lora_rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        extra["peft_config"] = lora
    return config.model, extra


def trained_tensors(model) -> dict:
    return {name: p.data for name, p in model.named_parameters() if p.requires_grad}


def make_trainer(ready: Prepared, args, run: GrpoRun):
    """TRL's GRPOTrainer for this run; what it refuses is told as a UserError."""
    from datasets import Dataset
    from safetensors import SafetensorError
    from trl import GRPOTrainer
    from trl.trainer import grpo_trainer

    config, rows, tokenizer = ready.config, ready.rows, ready.tokenizer
    args.reward_weights = [run.scorer.weights[name] for name in run.scorer.functions]
    leave_out_cudnn_attention()
    # TRL has the text of a prompt, and its ids from here; a rollout function needs the number of its row
    decoded = [tokenizer.decode(row["prompt_ids"]) for row in rows]
    texts = {text: row["prompt_ids"] for text, row in zip(decoded, rows, strict=True)}
    sent = [*map(str, range(len(rows)))] if run.setup else decoded
    order = prompt_order(config, len(rows), ready.plan.rollouts * ready.plan.prompts_per_rollout)
    data = Dataset.from_dict({"prompt": sent, "row": list(range(len(sent)))}).select(order)
    given = {"reward_funcs": run.scorer.for_trl(), "processing_class": tokenizer, "args": args, "train_dataset": data}
    given |= {"rollout_func": rollout_function(run.setup, run.scorer)} if run.setup else {}
    whole = functools.partial(load_whole, grpo_trainer.create_model_from_path)  # TRL loads policy and reference
    try:
        with engine_arguments(config, args), mock.patch.object(grpo_trainer, "create_model_from_path", whole):
            model, extra = model_and_adapter(config, args)
            exact, loading = {}, args.model_init_kwargs
            if not isinstance(model, str):
                exact, args.model_init_kwargs = trained_tensors(model), None  # of a loaded one TRL warns
            trainer = GRPOTrainer(model=model, **given, **extra)
            args.model_init_kwargs = loading
    except ConnectionError as error:
        got = f"got --use_vllm server, but no server answers: {error}"
        flags = """--weight-transfer-config '{"backend": "nccl"}' --logprobs-mode processed_logprobs"""
        serve = f"VLLM_SERVER_DEV_MODE=1 vllm serve {config.model} {flags}"
        raise UserError(f"{got}; try `{serve}` on other GPUs, and --vllm_server_base_url") from error
    except (OSError, ValueError, TypeError, AttributeError, ImportError, NotImplementedError, SafetensorError) as error:
        raise UserError(f"got model {config.model!r} and these settings, which TRL refuses: {error}") from error
    sample_plainly(trainer.model, trainer.eos_token_ids, tokenizer.pad_token_id)
    sample_tokens_only(config, trainer)
    advice = "a new run with a lower --max_completion_length, fewer completions a step, or --use_vllm colocate"
    trainer._generate = room_for("while sampling", advice)(trainer._generate)
    trainer._tokenize_prompts = lambda prompts: ([list(texts[prompt]) for prompt in prompts], None, {})
    run.watch = watch_copies(config, trainer)
    keep_differentiable(trainer.model)
    for name, x in trained_tensors(trainer.model).items() if config.load_in_4bit else ():
        # TRL rounds adapters on 4-bit weights to bf16, where small steps are lost
        trainer.model.get_parameter(name).data = exact.get(name, x).to(x.device).float()
    trainer.remove_callback(transformers.PrinterCallback)
    run.scorer.tokenizer, run.scorer.eos_ids = trainer.processing_class, trainer.eos_token_ids
    run.trainer, handler = trainer, trainer.callback_handler
    handler.callbacks.insert(0, make_callback(run))  # before the trackers, which then see held-out figures too
    check_padding(trainer)
    if run.setup:
        limit = getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)
        check_fits(config, limit, "max_completion_length")
        check_sampling_apart(trainer)
    else:
        models = {"policy": trainer.model, "networks": [trainer.model], "tokenizer": tokenizer}
        check_context(config, SimpleNamespace(**models, eos_ids=trainer.eos_token_ids), [*rows, *run.held_out])
    return trainer


def check_padding(trainer) -> None:
    """Warn where padding on the left changes log-probs, as TRL passes no positions (GPT-2 has absolute ones)."""
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return
    model, pad = trainer.model, torch.nn.functional.pad
    ids = torch.tensor([[1, 2, 3, 4]], device=trainer.accelerator.device)
    training = model.training
    model.eval()
    with torch.no_grad(), trainer.accelerator.autocast():
        alone = model(input_ids=ids).logits[0, -1].float()
        beside = model(input_ids=pad(ids, (4, 0)), attention_mask=pad(ids > 0, (4, 0)).long()).logits[0, -1].float()
    model.train(training)
    gap = (alone.log_softmax(-1) - beside.log_softmax(-1)).abs().max().item()
    if gap > 0.5:
        warning = f"warning: padding moves this model's log-probs by {gap:.1f} nats, as TRL passes no positions"
        say(f"{warning}; train on prompts of one length, or take a model with rotary positions")


# -------------------------------------------------------------------------------- run (src/programs/grpo_train/run.py)


@contextlib.contextmanager
def quiet_libraries(config: Config):
    """Set what must stand in the environment when TRL is imported and used; what the user has set stays."""
    defaults = {"TENSORBOARD_LOGGING_DIR": f"{config.output_dir}/tensorboard", "WANDB_DIR": config.output_dir}
    defaults |= {"WANDB_PROJECT": "rl-training", "HF_HUB_DISABLE_TELEMETRY": "1"}
    defaults |= {"TRL_EXPERIMENTAL_SILENCE": "1"}  # of rollout_func: TRL is pinned
    quiet_environment(bool(config.use_vllm))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*deprecated.*")  # inside TRL and peft
    with mock.patch.dict(os.environ, {name: value for name, value in defaults.items() if name not in os.environ}):
        yield


def prepare_run(config: Config) -> Prepared:
    """Check everything that does not need the weights."""
    settle_model(config)
    check_settings(config)
    seed_generators(config)  # for the user's rewards
    tokenizer, setup = left_tokenizer(config), None
    environments = load_environments(config.environment) if config.environment else None
    if environments:
        check_chat_template(config, tokenizer)
    rows, held_out = load_splits(config, tokenizer)
    scorer = load_scorer(config, rows)
    for row in (rows + held_out)[:: max(1, len(rows))]:
        scorer.check_columns(row)
    if environments:
        let_environments_score(config, environments, scorer)
        check_environment_rows(environments, rows + held_out)
        ends = ending_ids(generation_settings(base_of(config.model)).eos_token_id, tokenizer)
        setup = make_play_setup(config, tokenizer, ends, environments)
        sources = ((rows, config.data), (held_out, "held-out prompts"))
        rows, held_out = (playable_rows(config, setup, of, name, "max_prompt_length") for of, name in sources)
        scorer.rows = rows
    parameters = sum(p.numel() for p in shaped_network(config, config.model).parameters())
    resolved = fill_in(config, parameters)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    plan = plan_batches(resolved, processes, len(rows))
    at_once = plan.completions_per_rollout // processes  # what training has memory for
    resolved.per_device_eval_batch_size = resolved.per_device_eval_batch_size or at_once
    whole = math.ceil(resolved.save_steps / plan.steps_per_rollout) * plan.steps_per_rollout
    if whole != resolved.save_steps:
        say(f"checkpoints every {whole} steps: a rollout lasts {plan.steps_per_rollout}; TRL cannot resume inside one")
        resolved.save_steps = whole
    check_machine(resolved)
    resolved.given = config.given
    if processes == 1 or "RANK" in os.environ:
        trl_config(resolved, plan.steps)  # making it joins the processes, which then choose as one
    say_idle(resolved, plan.steps_per_rollout)
    return Prepared(resolved, plan, tokenizer, rows, held_out, scorer, parameters, setup)


def trl_memory(ready: Prepared, config: Config, model, longest: int, processes: int) -> dict[str, float]:
    """Bytes per process, see `memory_of_run`; what vLLM takes is left out.

    {} where weights are sharded, which this does not count.
    """
    args, parameters, shape = trl_settings(config, ready.plan.steps), ready.parameters, shape_of(model)
    sharded = any(os.environ.get(f"ACCELERATE_USE_{name}") for name in ("DEEPSPEED", "FSDP", "MEGATRON_LM"))
    if not shape or sharded or args.get("deepspeed") or args.get("fsdp"):
        return {}
    whole = config.conversation_tokens if config.environment else longest + config.max_completion_length
    loading = args["model_init_kwargs"]
    stream = 4 if loading["dtype"] == "float32" else 2
    run = PassShape(
        rows=config.per_device_train_batch_size,
        length=whole,
        compute=2 if args["bf16"] or args["fp16"] else stream,
        stream=stream,
        attention=attention_kind(loading.get("attn_implementation") or model.config._attn_implementation),
        checkpointing=args["activation_checkpointing"],
        lora_rank=config.lora_rank,
    )
    if config.lora_rank:
        each, adapters = 0.516 if config.load_in_4bit else run.stream, adapter_weights(shape, config.lora_rank)
        kept, gradients = frozen_bytes(shape, parameters, each, run.stream) + 12 * adapters, 4 * adapters
    else:
        plain = config.optim.startswith(("sgd", "adafactor"))
        moments = 0 if plain else 0.5 if "8bit" in config.optim else 2  # of a weight, in its width
        kept, gradients = (1 + moments) * parameters * run.stream, parameters * run.stream
    reference = parameters * run.stream if config.beta and not config.lora_rank else 0
    at_once = 0 if config.use_vllm else ready.plan.completions_per_rollout // processes
    head = trl_head(shape, run, not args["use_cpu"])
    frozen = {"reference": reference}
    return memory_of_run(shape, run, (kept, gradients), frozen, head, at_once, config.max_completion_length)


def splits(config: Config, given: frozenset[str], heed: bool) -> list[dict]:
    """Completions of a forward pass and forward passes of a step, whose product stays; one pair where they matter.

    Args:
        given: names of the settings in flags and YAML; those of a profile are not among them.
    """
    batch, passes = config.per_device_train_batch_size, config.gradient_accumulation_steps
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
    left_open = given.isdisjoint(names)
    quantile = any(pair.startswith("top_entropy_quantile") for pair in config.trainer_args)
    exact = config.loss_type != "bnpo" and not quantile  # these look at a forward pass
    sizes = [size for size in ladder(batch, 1) if batch % size == 0] if exact and (left_open or not heed) else [batch]
    return [{names[0]: size, names[1]: passes * batch // size} for size in sizes]


def sizes_of_run(ready: Prepared, processes: int) -> Sizes:
    """What may be chosen by the memory that is free."""
    config, longest = ready.config, max(len(row["prompt_ids"]) for row in ready.rows)
    model, checkpointing = shaped_network(config, config.model), {"gradient_checkpointing": "true"}
    recompute = {} if trl_settings(config, 1)["activation_checkpointing"] else checkpointing
    beside = config.use_vllm == "colocate" and not config.vllm_enable_sleep_mode
    return Sizes(
        estimate=lambda changed: trl_memory(ready, changed, model, longest, processes),
        choices=lambda changed, heed: {UPDATE: splits(changed, config.given, heed), SAMPLING: [{}]},
        text=lambda changed: f"micro-batches of {changed.per_device_train_batch_size} completions",
        lighter=lighter_settings(config, "max_completion_length", recompute, bits=not config.merge_lora),
        aside=config.vllm_gpu_memory_utilization if beside else 0.0,
    )


def trl_device(config: Config) -> str:
    if trl_settings(config, 1)["use_cpu"]:
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def show_trl_plan(config: Config) -> int:
    """Print batch arithmetic, memory per process, and the settings that are no defaults, as JSON."""
    ready = prepare_run(config)
    resolved, plan = ready.config, ready.plan
    turns = resolved.max_turns if resolved.environment else 1
    completions = plan.rollouts * plan.completions_per_rollout
    passes = plan.rollouts * plan.prompts_per_rollout / len(ready.rows)
    batch = batch_plan(config, ready.tokenizer, ready.rows, ready.held_out) | dataclasses.asdict(plan)
    batch |= {
        "prompts_per_step": plan.completions_per_step / resolved.num_generations / resolved.num_iterations,
        "optimizer_steps": plan.steps,
        "passes_over_the_data": round(passes, 2),
        "completion_tokens_at_most": completions * turns * resolved.max_completion_length,
    }
    shown = {"batch": batch, "rewards": ready.scorer.weights, "parameters": ready.parameters}
    shown |= environment_plan(resolved, ready.setup)
    sizes = sizes_of_run(ready, int(os.environ.get("WORLD_SIZE", "1")))
    show_plan(resolved, trl_device(resolved), sizes, shown)
    return 0


def train(config: Config) -> int:
    if config.profile:
        say(f"profile {config.profile}: " + ", ".join(f"{k}={getattr(config, k)}" for k in PROFILES[config.profile]))
    ready = prepare_run(config)
    resolved, plan = ready.config, ready.plan
    checkpoint = resume_point(config)
    check_stop_when(config.stop_when)
    settle_or_refuse(resolved, trl_device(resolved), sizes_of_run(ready, world()[1]))
    args = trl_config(resolved, plan.steps)
    make_folder(config)
    run = GrpoRun(ready)
    with room_for(*LOADING):
        trainer = make_trainer(ready, args, run)
    start = -1
    if checkpoint:
        run.restore(checkpoint)
        start = int(checkpoint.name.rpartition("-")[2])
    run.log, run.stop = RunLog(config, start, plan.steps, report_to=[]), StopRequest()
    write_settings(config)
    try:
        if start >= plan.steps:
            trainer._load_from_checkpoint(str(checkpoint))  # trained to the end, and stopped before final/ was written
            trainer.state.global_step = start
        else:
            run_steps(trainer, checkpoint)
        run.log.plot()
        step = trainer.state.global_step
        if run.signum and step < plan.steps:
            return say_stopped(run.signum, step)
        summary = run_summary(config, {**run.kept, "step": step})
        export_final(config, trainer)
    finally:
        run.log.close()
        run.stop.restore()
    report(config, summary | {"seconds": round(run.state()["attributes"]["seconds"], 1)})
    return 0


def run_steps(trainer, checkpoint: Path | None) -> None:
    """Call TRL's train(), and say in the user's words what ends it early."""
    half = "--resume with half --per_device_train_batch_size and twice --gradient_accumulation_steps"
    less = f"{half}, or a new run with --profile memory"
    try:
        with room_for("in the update", less):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except (RewardError, EnvironmentFault):
        step = trainer.state.global_step
        done = Path(trainer.args.output_dir) / f"checkpoint-{step}"
        if step and world()[1] == 1 and not done.exists():
            trainer._save_checkpoint(trainer.model, None)  # scoring changes no weights: these are the last step's
            trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
            say(f"saved step {step}; fix the fault and continue with --resume")
        raise
    except RuntimeError as error:
        if "inf" in str(error) and "nan" in str(error):  # torch.multinomial on a model that is lost
            got = f"got probabilities that are not finite after step {trainer.state.global_step}"
            raise DivergedError(f"{got} ({error}); expected finite ones; try a lower --learning_rate") from error
        raise


def run(argv: list[str]) -> int:
    config = parse_config(argv)
    with quiet_libraries(config):
        return show_trl_plan(config) if config.dry_run else train(config)


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
