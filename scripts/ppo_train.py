#!/usr/bin/env python3
# Built from src/programs/ppo_train/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.6", "transformers>=5.23,<6", "numpy", "pyyaml", "tqdm", "matplotlib", "pyarrow", "datasets", "peft",
# ]
# ///
"""PPO with a critic, and the family without one, for any causal language model and any Python reward function.

One step samples completions, scores them, and updates the policy on that batch. `--algorithm ppo`, the default:

    reward       r_t = score at the last token - kl_coef * KL_t(policy || reference)         Ziegler 2019, eq. 2
    advantage    A_t = delta_t + gamma lambda A_{t+1},  delta_t = r_t + gamma V_{t+1} - V_t    Schulman 2016, eq. 16
    policy loss  max(-A ratio, -A clip(ratio, 1 - low, 1 + high)); if A < 0: min(that, -A c)  Schulman 2017, eq. 7
                                                                                           dual clip: Ye 2020, eq. 5
    value loss   1/2 max((V - R)^2, (clip(V, V_old +- c) - R)^2),  R = A + V_old       as in the original PPO code

Every other algorithm samples `group_size` completions per prompt and needs no critic. Each is a row of PRESETS with
four choices: an advantage estimator (ADVANTAGES), a policy loss (LOSSES), an aggregation (`token_weights`), and where
the KL goes. Each choice has its own flag; your own estimator or loss is `--advantage FILE.py:function` or `--loss
FILE.py:function`. references/rl_algorithms.md has equations, sources, and what each was compared with.

Every per-token tensor is [B, T] over prompt + response and x[b, t] is about token t; masks are 1 = keep.

Deliberately left out: top-p and top-k sampling (they bias the ratio), and sharded models. Each process holds the whole
model; what does not fit one GPU belongs in a framework such as verl.

    python scripts/ppo_train.py --output_dir runs/first             # CPU, the embedded model, about a minute
    python scripts/ppo_train.py --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --eval_data test.jsonl \\
        --reward my_rewards.py:correct --precision bf16 --gradient_checkpointing --output_dir runs/qwen   # one GPU
    python scripts/ppo_train.py --algorithm grpo --output_dir runs/grpo                          # groups of 8
    python scripts/ppo_train.py --environment examples/environments.py:SecondAttempt --max_turns 2 \\
        --output_dir runs/talk                                                                   # several turns
    torchrun --nproc_per_node 4 scripts/ppo_train.py --model … --data … --output_dir runs/qwen4           # GPUs

Exit codes: 0 done, 1 saved and stopped by --stop_when broken, 2 bad input, 3 a reward or environment failed,
4 diverged, 5 vLLM has other weights than the policy, 128 + n saved and stopped by signal n.
"""

# Contents
#       153-164  python source     Parses Python source in a process with threads
#       167-270  messages          Errors that a user can fix, each with an exit code; messages on stderr; the layout …
#       273-349  bundle            Paths of this bundle and of its embedded model, data and rewards; loading its …
#       352-574  dialect           Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and …
#       577-812  settings          Settings: dataclasses whose fields are flags and YAML keys, and the checks that …
#      815-1206  processes         The processes of a run: lazy torch, device, threads, sums, distribution of rows, …
#     1209-1279  exit codes        Program exit: errors that a user can fix become a message and an exit code
#     1282-1519  data files        Open data files as text: decompress, decode, refuse files without data; parse CSV …
#     1522-1619  nested rows       Find rows inside other JSON: an object with a list of rows, columns instead of …
#     1622-1887  rows              Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their prompts
#     1890-2100  chat              Chat templates: their settings, rendering messages, and prompts that bypass a …
#     2103-2192  held out          Held-out prompts: split them off, and count or refuse those that also occur in …
#     2195-2320  prompts           Load training and held-out prompts as token ids
#     2323-2533  user code         What users' rewards get: texts, copies of the columns, and their own state of the …
#     2536-2773  reward forms      The forms that a reward function may have, and loading rewards from files
#     2776-3112  rewards           The reward of a run, a weighted sum of functions; async ones run in one event …
#     3115-3244  environments      Load and check environments: classes whose methods are tools for the model, or …
#     3247-3450  tool calls        Parse tool calls in model output, by the tokenizer's response template or one of …
#     3453-3573  tool runs         Run the calls of many conversations concurrently, each with a time limit; none can …
#     3576-3877  turn bridge       Compute the tokens between turns from the chat template, so that sampled ids are …
#     3880-4215  conversations     Play a policy's conversations with environments; each turn samples all open …
#     4218-4379  play setup        Set up and score conversations, for all programs that take --environment
#     4382-4429  whole models      Refuse what transformers would make a model of by guessing: missing weights, other …
#     4432-4644  adapters          LoRA adapters: where their base and tokenizer are, loading, merging, saving
#     4647-4792  models            The networks of a run: their precision, the frozen reference, prompts that they …
#     4795-4861  tokenizers        Tokenizers: loading and saving, the tokens that end a completion, the rows that …
#     4864-4966  loading           Load networks: attention, 4-bit weights, dropout, dtypes, generation settings, …
#     4969-5188  batches           Batches: masked statistics, padding, micro-batches, and packed layouts that hold a …
#     5191-5478  key cache         The key-value cache while sampling: it grows in blocks, holds shared prompts once, …
#     5481-5800  forward           The forward pass: attention that runs a shared prompt once, backbone, logits, …
#     5803-5923  faster layers     Faster forms of layers while sampling: LoRA folded into weights, norms in one …
#     5926-6175  cache probe       Probe what a model's cache and attention can do, before sampling and training rely …
#     6178-6260  room steps        One more token per row, with fixed shapes and addresses within the cache, as a …
#     6263-6509  sampling          Sampling with the policy itself: a KV cache, rows that leave the batch when they end
#     6512-6649  sync check        Check that a sampler has the policy's weights: checksums of each tensor, log-probs …
#     6652-6844  sampling vllm     Sampling with vLLM on the same GPU, and copying the weights into it
#     6847-6900  rollouts          Sample and score a batch's rows over all processes
#     6903-7185  losses            The KL to the reference, policy and value losses, and how losses per token become …
#     7188-7258  idle settings     Settings without effect in a configuration: named at the start, with what would …
#     7261-7561  advantages        From scores to advantages: penalties and KL in the reward, the estimators; a new …
#     7564-7683  presets           The algorithms by name: which choices each one makes, and which choices contradict …
#     7686-7964  trainer settings  Settings that several trainers have, with their defaults: a trainer's Config adds …
#     7967-8062  own functions     Advantage estimators and policy losses of the user's own, `FILE.py:function`, in …
#     8065-8243  optimizer         The updates of a step: learning rates, gradients over the processes, clipping, …
#     8246-8565  memory            The memory that a run will need, from the shape of its networks
#     8568-8807  fit               Sizes that fit the memory: chosen and reported in one line, refused if too large; …
#     8810-8853  pictures          The picture of a run, curves.png, and the keys of samples.jsonl
#     8856-9019  output folder     The output folder: which run owns it, folders written whole or not at all, modes …
#     9022-9128  checkpoints       The state of a run, checkpoints, resuming, the exported model
#     9131-9245  run end           A run's end: summary.json, the faults that its last steps show, and what is printed
#     9248-9294  run check         diagnose.py's verdict on a run, while it trains and at its end
#     9297-9647  progress          A run's progress and log: evaluations, the end of each step, stopping by a signal, …
#     9650-9681  paired tests      Intervals, paired tests, pass@k
#     9684-9707  settings          Settings of the trainer
#     9710-9878  rollout           The rollout: prompts drawn, completions or conversations sampled and measured, and …
#     9881-9994  models            Inputs of a run and their checks: prompts, rewards, environments, networks
#    9997-10180  step              One step: rollout, experience, update, in the order of the data
#   10183-10268  run               The memory and the plan of a run, its loop, and the command line

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
from dataclasses import dataclass, field, replace
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


def free_on_resume(config) -> set[str]:
    return {f.name for f in dataclasses.fields(config) if f.metadata["free"]}


# ----------------------------------------------------------------------- processes (src/parts/foundation/processes.py)

GRACE_S = 5.0  # seconds for cleanup after a KeyboardInterrupt, before the process is ended by force
WAIT = datetime.timedelta(minutes=30)  # longest wait of a process for the others, whose rollouts may take longer
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


def sum_over_processes(tensor):
    """Sum a tensor over all processes in place and return it."""
    if world()[1] > 1:
        torch.distributed.all_reduce(tensor)
    return tensor


def of_first_process(tensor):
    """The first process's tensor, in every process, for decisions that rounding could make differ."""
    rank, size = world()
    if size == 1:
        return tensor
    return sum_over_processes(tensor.clone() if rank == 0 else tensor.new_zeros(tensor.shape))


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


def stop_before_update() -> None:
    """Raise StopRequested in all processes if one got a signal; every process must call it."""
    stop = StopRequest.current
    if stop and stop.leaves_steps() and (signum := stop.agreed()):
        raise StopRequested(signum)


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

REFERENCE = "reference"  # peft's name for the frozen copy of the initial adapter


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


def keep_as_reference(policy, source: str) -> None:
    """Add a frozen copy of the initial adapter `source` to the policy."""
    try:
        policy.load_adapter(source, REFERENCE, is_trainable=False)
    except ValueError as error:  # peft allows only one adapter with biases
        got = f"got the adapter {source!r} and KL to it, a frozen copy of which peft refuses: {error}"
        raise UserError(f"{got}; expected LoRA alone; try --kl_coef 0, or {merge_command(source)}") from None
    policy.eval()


@contextlib.contextmanager
def as_reference(policy):
    """Context in which a policy under LoRA acts as its reference: with its initial adapter, or as the base."""
    if not hasattr(policy, "peft_config"):
        yield
    elif REFERENCE not in policy.peft_config:
        with policy.disable_adapter():
            yield
    else:
        policy.set_adapter(REFERENCE, inference_mode=True)
        try:
            yield
        finally:
            policy.set_adapter("default")


def add_sparsely(policy, device) -> None:
    """Let tied embeddings on a CPU add rows to the output layer's gradient, instead of two more matrices of its size.

    Not for networks in DistributedDataParallel, which would expect a sparse sum.
    """
    first, last = policy.get_input_embeddings(), policy.get_output_embeddings()
    weight = first.weight
    if device.type != "cpu" or getattr(last, "weight", None) is not weight or not weight.requires_grad:
        return
    first.sparse = True

    def densify(weight) -> None:  # if only the embeddings have a gradient, as without a token loss
        weight.grad = weight.grad.to_dense() if weight.grad.is_sparse else weight.grad

    weight.register_post_accumulate_grad_hook(densify)


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


# ----------------------------------------------------------------------------- batches (src/parts/networks/batches.py)

OVERHEAD = 0.125  # cost in tokens of a cell (rows x columns) of a packed pass, as every row reads its prompt's keys


def masked_mean(x, mask):
    """Mean of x where mask is 1; both [B, T]; 0 for an empty mask."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def masked_whiten(x, mask, shift_mean: bool = True):
    """Scale x [B, T] to unit variance over the tokens where mask is 1, and to mean 0 unless `shift_mean` is false.

    The variance is unbiased and gets 1e-8 added, as in verl's `masked_whiten`. Entries with mask 0 become 0.
    """
    mean = masked_mean(x, mask)
    var = masked_mean((x - mean) ** 2, mask)
    var = var * mask.sum() / (mask.sum() - 1).clamp(min=1)  # Bessel
    white = (x - mean) * (var + 1e-8).rsqrt()
    return (white if shift_mean else white + mean) * mask


def explained_variance(values, returns, mask) -> float:
    """1 - Var[returns - values] / Var[returns] where mask is 1; all [B, T]. 0 if the returns do not vary."""
    if not mask.any():  # torch warns of the variance of nothing
        return 0.0
    r, error = returns[mask.bool()], (returns - values)[mask.bool()]
    var = r.var(unbiased=False)
    return (1 - error.var(unbiased=False) / var).item() if var > 1e-12 else 0.0


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


def own_rows(batch: dict, rows) -> list[int]:
    """The rows of a batch that this process takes: about equally many tokens each; rows of a prompt stay together."""
    rows, (rank, size) = [int(row) for row in rows], world()
    if size == 1 or not rows:
        return rows
    lengths = batch["attention_mask"][rows].sum(1).tolist()
    first = int(batch["response_mask"].any(0).int().argmax())  # column in which responses start
    prompts = map(tuple, batch["input_ids"][rows, :first].tolist())
    return [rows[i] for i in dealt(lengths, list(prompts), size)[rank]]


def micro_batches(batch: dict, rows, budget: int, shared: float = 0) -> list:
    """Split row indices into groups of similar length with at most `budget` tokens each, pads included.

    If no row is longer than `shared` (the networks' `shared_length`), rows of a prompt are kept together and the
    tokens are counted by `cost_of_pass`.
    """
    mask, rows = batch["attention_mask"], [int(r) for r in rows]
    firsts = mask.argmax(1).tolist()  # columns of the first and the last token of each row
    lasts = (mask.shape[1] - 1 - mask.flip(1).argmax(1)).tolist()
    lengths = [last - first + 1 for first, last in zip(firsts, lasts, strict=True)]
    start, prompts = 0, list(range(len(mask)))
    if rows and max(lengths[r] for r in rows) <= shared:
        start, prompt_lengths, _ = same_prompts(batch)
        prompts = prompt_lengths.tolist()
    longest = {prompts[r]: lengths[r] for r in sorted(rows, key=lambda r: lengths[r])}  # longest row of each prompt

    def cost(group) -> float:
        cells = len(group) * (1 + max(lasts[r] for r in group) - min(firsts[r] for r in group))
        once = {prompts[r]: start - firsts[r] for r in group}
        return cost_of_pass(sum(once.values()) + sum(lasts[r] - start for r in group), cells) if start else cells

    groups, current = [], []
    for row in sorted(rows, key=lambda r: (longest[prompts[r]], prompts[r], lengths[r], r)):
        if current and cost([*current, row]) > budget:
            groups.append(current)
            current = []
        current = [*current, row]
    return [torch.tensor(group, device=mask.device) for group in [*groups, current] if group]


def trimmed(batch: dict, rows) -> tuple[dict, slice]:
    """(the given rows without columns that are padding in all of them, the slice of kept columns)."""
    used = batch["attention_mask"][rows].any(0).nonzero()
    columns = slice(int(used[0]), int(used[-1]) + 1)
    return {name: x[rows, columns] for name, x in batch.items()}, columns


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


def rows_at(x, places, empty: bool = False):
    """Rows of x [N, ...] at places [...]. Place N gives the last row, or zeros with `empty`.

    The backward pass sums equal places in a fixed order.
    """
    padding = len(x) if empty else None
    x = torch.cat([x, x.new_zeros(1, *x.shape[1:])]) if empty else x
    rows = torch.nn.functional.embedding(places.clamp(max=len(x) - 1), x.flatten(1), padding_idx=padding)
    return rows.view(*places.shape, *x.shape[1:])


def shared_attention(module, query, key, value, attention_mask, layout: Layout | Groups | None = None, **kwargs):
    """Transformers' "sdpa" attention; with a `Layout`, each text of the packed line [1, heads, N, D] sees itself only.

    With `Groups`, it is the attention of each row's next token. Prompts start in column 0, so they need the causal mask
    only: pads follow them, no token sees a pad, and the results of pads are dropped.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if hasattr(module, "kept_tokens"):
        module.kept_tokens.kept = layout.kept if isinstance(layout, Layout) else None
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if isinstance(layout, Groups):
        return layout.attend(module.layer_idx, query, key, value, kwargs.get("scaling")), None
    line = [x[0].transpose(0, 1) for x in (query, key, value)]  # [N, heads, D]

    def attend(asking, asked, mask):
        places = (asking, asked, asked)
        if layout.back is None:
            blocks = [x.reshape(*place.shape, *x.shape[1:]) for x, place in zip(line, places, strict=True)]
        else:
            blocks = [rows_at(x, place) for x, place in zip(line, places, strict=True)]
        blocks = [block.transpose(1, 2) for block in blocks]
        return sdpa_attention_forward(module, *blocks, mask, **kwargs)[0].flatten(0, 1)  # [rows x columns, heads, D]

    attended = attend(layout.prompts, layout.prompts, None)
    if layout.responses.numel():
        mask = layout.added_to_scores(query.dtype)
        attended = torch.cat([attended, attend(layout.responses, layout.texts, mask)])
    return (attended if layout.back is None else rows_at(attended, layout.back))[None], None


class KeptTokens:
    """Restricts a network's last `mlp` to a line's kept tokens, as no other state is used after it.

    The layer's attention runs first and sets `kept`, also when the layer is recomputed.
    """

    def __init__(self, layer):
        self.kept, self.count = None, 0
        self.attentions = [module for module in layer.modules() if hasattr(module, "layer_idx")]
        for module in self.attentions:
            module.kept_tokens = self
        self.hooks = [layer.mlp.register_forward_pre_hook(self.narrow), layer.mlp.register_forward_hook(self.widen)]

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()
        for module in self.attentions:
            del module.kept_tokens

    def narrow(self, mlp, args):
        """Before the mlp: select the kept states [1, M, H] of [1, N, H]."""
        if self.kept is None:
            return None
        self.count = args[0].shape[1]
        return args[0].index_select(1, self.kept), *args[1:]

    def widen(self, mlp, args, output):
        """After the mlp: put them back into [1, N, H], with 0 elsewhere."""
        if self.kept is None:
            return None
        return output.new_zeros(1, self.count, output.shape[2]).index_copy(1, self.kept, output)


def recomputing_layers(network) -> list:
    """The layers of a network that recompute their activations under gradient checkpointing: its decoder layers."""
    kind = transformers.modeling_layers.GradientCheckpointingLayer
    return [layer for layer in network.modules() if isinstance(layer, kind)]


def set_attention(model, name: str, narrow: bool = False) -> None:
    """Set the attention to SHARED_PROMPTS or a kind of transformers; `narrow`: the last mlp runs kept tokens only."""
    transformers.AttentionInterface.register(SHARED_PROMPTS, shared_attention)
    transformers.AttentionMaskInterface.register(SHARED_PROMPTS, transformers.masking_utils.sdpa_mask)
    network = unwrapped(model)
    network.config.get_text_config()._attn_implementation = name
    layers = recomputing_layers(network)
    for module in layers[-1:] and list(layers[-1].modules()):
        if hasattr(module, "kept_tokens"):
            module.kept_tokens.remove()
    if narrow and layers and hasattr(layers[-1], "mlp"):
        KeptTokens(layers[-1])


def shared_length(networks: list) -> float:
    """Longest row, in tokens, whose prompt all networks (None is skipped) can run once for several rows; 0: none."""
    return min((length_that_shares(network) for network in networks if network is not None), default=0)


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


def pieces_of_batch(config: BaseConfig, models: Models, batch: dict, rows) -> Iterator[tuple]:
    """Yield (rows, columns, micro-batch) for this process's share of some rows of a batch."""
    local_rows, shared = own_rows(batch, rows), shared_length(models.networks)
    for piece_rows in micro_batches(batch, local_rows, config.micro_batch_tokens, shared):
        piece, columns = trimmed(batch, piece_rows)
        yield piece_rows, columns, piece


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


def token_logprobs(config: BaseConfig, model, hidden, piece: dict, entropy_grad: bool = False):
    """Log-prob of each response token and entropy of its distribution, [B, T], 0 outside the response mask."""
    mask = piece["response_mask"].bool()
    chunk = max(1, config.logits_chunk // unwrapped(model).config.get_text_config().vocab_size)
    flat = logprobs_and_entropy(
        lambda h: lm_logits(model, h), hidden[mask], piece["input_ids"][mask], config.temperature, chunk, entropy_grad
    )
    return tuple(x.new_zeros(mask.shape).masked_scatter(mask, x) for x in flat)


def token_values(critic, hidden):
    """Values [B, T] in float32: entry t is the value of the text before token t."""
    with torch.autocast(hidden.device.type, enabled=False):
        return critic.head(hidden.float()).squeeze(-1)


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


def sharing_gap(config: BaseConfig, models: Models, network, narrow: bool) -> float:
    """Largest relative gap of a state if each prompt runs once for its rows; `narrow` as for `set_attention`."""
    texts = probe_texts(unwrapped(network).get_input_embeddings().weight.shape[0])
    kinds = [(texts[row], texts[0][-length:]) for row, length in ((0, 7), (1, 5), (0, 2), (0, 1), (1, 8))]
    samples = [{"prompt_ids": a, "response_ids": b, "rollout_logprobs": [0.0] * len(b)} for a, b in kinds]
    piece = collate(samples, models.pad_id, models.device)
    layout, sampled = layout_of(piece, math.inf), piece["response_mask"].bool()

    def plainly():
        return plain_states(network, piece["input_ids"], piece["attention_mask"]).roll(1, dims=1)[sampled]

    with torch.no_grad(), autocast(config, models.device):
        expected = plainly()
        set_attention(network, SHARED_PROMPTS, narrow)
        got = torch.cat([line_states(network, layout)[sampled], plainly()])
    return max(relative_gap(*pair) for pair in zip(got, expected.repeat(2, 1), strict=True))


def can_share(config: BaseConfig, models: Models, network) -> bool:
    """Let a network run each prompt once for all of its rows if the states stay the same; returns whether it does."""
    implementation = unwrapped(network).config.get_text_config()._attn_implementation
    if implementation == SHARED_PROMPTS:  # already set: under LoRA the reference is the policy
        return True
    for narrow in (True, False) if implementation == "sdpa" else ():
        gap = functools.partial(sharing_gap, config, models, network, narrow)
        with first_layers(config, network, models.device):
            shares = holds(gap, gap_limits(config, models.device)[1])
            set_attention(network, implementation)
        if shares:
            set_attention(network, SHARED_PROMPTS, narrow)
            if not narrow:
                say(f"note: the last MLP of {type(unwrapped(network)).__name__} also runs tokens without a gradient")
            return True
    return False


def share_prompts(config: BaseConfig, models: Models, networks: list) -> None:
    """Let the networks that can (None is skipped) run each prompt once for all of its rows; note those that cannot."""
    if not config.share_prompts:
        return
    networks = [network for network in networks if network is not None]
    cannot = [network for network in networks if not can_share(config, models, network)]
    longest = getattr(config, "conversation_tokens", config.max_prompt_tokens + config.max_new_tokens)
    short = [network for network in networks if 0 < length_that_shares(network) < longest]
    for group, which in ((cannot, "completions"), (short, "completions that are longer than its window")):
        for name in sorted({type(unwrapped(network)).__name__ for network in group}):
            say(f"note: {name} runs a prompt again with each of its {which}")


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


def turn_sampler(engine) -> Callable:
    """`(prompts, noise, numbers) -> completions` of an engine, for the turns of the conversations of one batch."""
    if isinstance(engine, HFEngine) and engine.decoding.plain:
        return TurnSampler(engine).generate
    return lambda prompts, noise, numbers: engine.generate(prompts, noise)


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


def kl_estimate(logprobs, ref_logprobs, estimator: str):
    """Per-token estimate of KL(policy || reference) from the policy's own samples, any shape (Schulman 2020)."""
    d = logprobs - ref_logprobs
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d**2 / 2
    return (-d).clamp(-20, 20).exp() + d - 1  # k3, bounded like the ratio


def kl_loss(logprobs, old_logprobs, ref_logprobs, estimator: str):
    """Per-token KL(policy || reference) as a term of the loss, [B, T].

    k3_ratio is k3 times the ratio: its gradient is the exact one of the reverse KL, whoever sampled (arXiv 2510.01555,
    and DeepSeek-V3.2, arXiv 2512.02556). k2's is exact on-policy, k3's is that of the forward KL, k1's is zero.
    """
    if estimator == "k3_ratio":
        return (logprobs - old_logprobs).clamp(-20, 20).exp() * kl_estimate(logprobs, ref_logprobs, "k3")
    return kl_estimate(logprobs, ref_logprobs, estimator)


def next_kl_coef(kl_coef: float, kl: float, target: float, horizon: int, completions: int) -> float:
    """Proportional controller of Ziegler 2019, eq. 4; kl and target in nats per completion."""
    error = min(max(kl / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * completions / horizon)


@dataclass(frozen=True)
class PolicyLoss:
    """An entry of LOSSES: the loss, whether rows whose advantages are all 0 take part in its gradient, and whether it
    reads `chosen`, the tokens of `covariance_choice`.

    The loss takes by keyword what it needs of logprobs, old_logprobs, advantages, mask, chosen, all [B, T], and config,
    and returns (loss, clipped), both [B, T]: the loss per token, and 1 where a bound changed it.

    Rows take part where a term stands outside the advantage, or where tokens are chosen among those of the whole
    minibatch.
    """

    per_token: object  # the function
    trains_zero_advantage: bool
    chooses_tokens: bool = False

    def __call__(self, **known):
        """(loss, clipped), both [B, T]."""
        return self.per_token(**known)


def likelihood_ratio(logprobs, old_logprobs):
    """exp(logprobs - old_logprobs), any shape; the log-ratio is bounded to +-20."""
    return (logprobs - old_logprobs).clamp(-20, 20).exp()


def sequence_mean(x, mask):
    """Mean of x [B, T] over each row's masked tokens, [B, 1]; 0 for an empty row."""
    return (x * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def policy_loss(logprobs, old_logprobs, advantages, clip_eps_low: float, clip_eps_high: float, dual_clip: float):
    """Clipped surrogate per token (Schulman 2017, eq. 7) with dual clip (Ye 2020, eq. 5); all [B, T].

    Returns:
        (loss, ratio, clipped), where clipped is 1 where a clip changed the loss. The log-ratio is bounded to +-20.
    """
    ratio = likelihood_ratio(logprobs, old_logprobs)
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    loss = torch.maximum(plain, bounded)
    if dual_clip:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return loss, ratio, (loss != plain).float()


def value_loss(values, old_values, returns, value_clip: float):
    """Clipped squared error per token, times 1/2; all [B, T]."""
    loss = (values - returns) ** 2
    if value_clip:
        near = old_values + (values - old_values).clamp(-value_clip, value_clip)
        loss = torch.maximum(loss, (near - returns) ** 2)
    return 0.5 * loss


def clip_loss(logprobs, old_logprobs, advantages, config, **_):
    """PPO's clipped surrogate; see `policy_loss`."""
    bounds = (config.clip_eps_low, config.clip_eps_high, config.dual_clip)
    loss, _, clipped = policy_loss(logprobs, old_logprobs, advantages, *bounds)
    return loss, clipped


def reinforce_loss(logprobs, advantages, **_):
    """-A log pi, without ratio: REINFORCE (Williams 1992), GPG's loss (arXiv 2504.02546, eq. 5)."""
    return -advantages * logprobs, logprobs.detach() * 0


def gspo_loss(logprobs, old_logprobs, advantages, mask, config, **_):
    """The clipped surrogate with one ratio a sequence, s = exp(mean log-ratio): GSPO-token (arXiv 2507.18071, eq. 13).

    The value is the sequence's, the gradient flows through each token's own log-prob.
    """
    s = sequence_mean(logprobs - old_logprobs, mask).detach() + logprobs - logprobs.detach()
    s = s.clamp(max=10).exp()  # [B, T]
    plain, bounded = -advantages * s, -advantages * s.clamp(1 - config.clip_eps_low, 1 + config.clip_eps_high)
    return torch.maximum(plain, bounded), (bounded > plain).float()


def cispo_loss(logprobs, old_logprobs, advantages, config, **_):
    """-sg(clip(ratio, 1 - low, 1 + high)) A log pi: CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4-5).

    Bounds as in the paper and in verl. TRL's cap c without lower bound is low = 1, high = c - 1.
    """
    ratio = likelihood_ratio(logprobs, old_logprobs).detach()
    bounded = ratio.clamp(1 - config.clip_eps_low, 1 + config.clip_eps_high)
    return -bounded * advantages * logprobs, (ratio != bounded).float()


def sapo_loss(logprobs, old_logprobs, advantages, config, **_):
    """-(4 / tau) sigmoid(tau (ratio - 1)) A, tau by the sign of A: SAPO (arXiv 2511.20347)."""
    tau = torch.where(advantages > 0, *map(advantages.new_tensor, (config.sapo_tau_pos, config.sapo_tau_neg)))
    gate = torch.sigmoid(tau * (likelihood_ratio(logprobs, old_logprobs) - 1)) * 4 / tau
    return -gate * advantages, logprobs.detach() * 0


def gmpo_loss(logprobs, old_logprobs, advantages, mask, config, **_):
    """-A times the geometric mean of the clipped ratios of a sequence: GMPO (arXiv 2507.20673, eq. 3-4).

    The bounds are of the log-ratio, [-low, high], and act on the side that the sign of A names. A is the mean over the
    sequence. Each token carries its sequence's loss, so seq_mean_token_mean gives the mean over sequences.
    """
    sign, d = torch.sign(advantages), logprobs - old_logprobs
    bounded = d.clamp(-config.clip_eps_low, config.clip_eps_high)
    d_min = sign * torch.minimum(sign * d, sign * bounded)
    loss = -sequence_mean(advantages, mask) * sequence_mean(d_min, mask).exp()  # [B, 1]
    return loss.expand_as(d), ((d_min != d) & (sign != 0) & mask.bool()).float()


def dppo_loss(logprobs, old_logprobs, advantages, config, valid_up, valid_down):
    """-sg(min(ratio, cap)) A log pi where the update may go on in A's direction, else 0; cap = dual_clip (0: none)."""
    ratio = likelihood_ratio(logprobs, old_logprobs).detach()
    weight = ratio.clamp(max=config.dual_clip or math.inf) * torch.where(advantages > 0, valid_up, valid_down)
    return -weight * advantages * logprobs, (weight != ratio).float()


def dppo_tv_loss(logprobs, old_logprobs, advantages, config, **_):
    """DPPO with binary total variation |p - p_old| (arXiv 2602.04879), bounded in the direction of A."""
    gap = (logprobs.exp() - old_logprobs.exp()).detach()
    bounds = gap <= config.clip_eps_high, gap >= -config.clip_eps_low
    return dppo_loss(logprobs, old_logprobs, advantages, config, *bounds)


def dppo_kl_loss(logprobs, old_logprobs, advantages, config, **_):
    """DPPO with the binary KL(p_old || p) of "this token or another" (arXiv 2602.04879)."""
    p, q, d = logprobs.exp().detach(), old_logprobs.exp(), (old_logprobs - logprobs).detach()
    kl = q * d + (1 - q) * torch.log((1 - q + 1e-8) / (1 - p + 1e-8))
    bounds = (kl <= config.clip_eps_high) | (p <= q), (kl <= config.clip_eps_low) | (p >= q)
    return dppo_loss(logprobs, old_logprobs, advantages, config, *bounds)


def clip_cov_loss(logprobs, old_logprobs, advantages, chosen, config, **_):
    """The clipped surrogate without the chosen tokens: Clip-Cov (Cui 2025, arXiv 2505.22617, eq. 10-11)."""
    loss, _, _ = policy_loss(logprobs, old_logprobs, advantages, config.clip_eps_low, config.clip_eps_high, 0.0)
    return loss * (1 - chosen), chosen


def kl_cov_loss(logprobs, old_logprobs, advantages, chosen, config, **_):
    """-A ratio, plus kl_cov_coef |log-ratio| on the chosen tokens: KL-Cov (Cui 2025, arXiv 2505.22617, eq. 12-13)."""
    ratio, distance = likelihood_ratio(logprobs, old_logprobs), (logprobs - old_logprobs).abs()
    return -advantages * ratio + config.kl_cov_coef * distance * chosen, chosen


LOSSES = {
    "clip": PolicyLoss(clip_loss, trains_zero_advantage=False),
    "reinforce": PolicyLoss(reinforce_loss, trains_zero_advantage=False),
    "gspo": PolicyLoss(gspo_loss, trains_zero_advantage=False),
    "cispo": PolicyLoss(cispo_loss, trains_zero_advantage=False),
    "sapo": PolicyLoss(sapo_loss, trains_zero_advantage=False),
    "gmpo": PolicyLoss(gmpo_loss, trains_zero_advantage=False),
    "dppo_tv": PolicyLoss(dppo_tv_loss, trains_zero_advantage=False),
    "dppo_kl": PolicyLoss(dppo_kl_loss, trains_zero_advantage=False),
    "clip_cov": PolicyLoss(clip_cov_loss, trains_zero_advantage=True, chooses_tokens=True),  # looks at every token
    "kl_cov": PolicyLoss(kl_cov_loss, trains_zero_advantage=True, chooses_tokens=True),
}


def covariance_choice(logprobs, old_logprobs, advantages, mask, draw, config):
    """The tokens that Clip-Cov or KL-Cov treats, [B, T] of 0 and 1: a share cov_frac, at least one where there is one.

    cov = (A - mean A)(log pi - mean log pi) over the masked tokens of the whole minibatch. KL-Cov takes the largest;
    Clip-Cov takes those with the least `draw` (uniform, [B, T]) among the unclipped with cov_low < cov < cov_high.
    """
    cov = (advantages - masked_mean(advantages, mask)) * (logprobs - masked_mean(logprobs, mask))
    eligible, order = mask.bool(), -cov
    if config.loss == "clip_cov":
        bounds = (config.clip_eps_low, config.clip_eps_high, 0.0)
        clipped = policy_loss(logprobs, old_logprobs, advantages, *bounds)[2].bool()
        eligible, order = eligible & ~clipped & (cov > config.cov_low) & (cov < config.cov_high), draw
    count = min(max(int(config.cov_frac * mask.sum()), 1), int(eligible.sum()))
    best = order.masked_fill(~eligible, math.inf).flatten().topk(count, largest=False).indices
    return torch.zeros_like(cov).flatten().index_fill(0, best, 1.0).view_as(cov)


def mismatch_mode(config: BaseConfig) -> str:
    """The correction for a sampler that is not the trainer; "none" for none."""
    auto = "tis" if config.rollout_engine == "vllm" else "none"
    return auto if config.mismatch == "auto" else config.mismatch


def mismatch_weights(old_logprobs, rollout_logprobs, mask, how: str, low: float, high: float):
    """Weights [B, T] that correct for a sampler that is not the trainer's old policy, from w = exp(old - rollout).

    tis: w, at most `high` (Yao 2025). icepop: w, 0 outside [low, high] (Ring-1T, arXiv 2510.18855). seq_mask: the
    product of a sequence's w for each of its tokens, 0 outside the bounds (TRL's sequence_mask). none: 1.
    """
    d = (old_logprobs - rollout_logprobs) * mask
    w = (d.sum(1, keepdim=True).expand_as(d) if how == "seq_mask" else d).clamp(-20, 20).exp()
    if how == "none":
        return torch.ones_like(w)
    return w.clamp(max=high) if how == "tis" else w * ((w >= low) & (w <= high))


AGGREGATIONS = {
    "token_mean": "sum over all tokens / their number: DAPO",
    "seq_mean_token_mean": "mean over completions of their token mean: GRPO",
    "seq_mean_token_sum": "mean over completions of their token sum",
    "seq_mean_token_sum_norm": "mean over completions of token sum / max_new_tokens: Dr. GRPO",
    "fixed_length": "mean over completions of token sum / norm_length",
}


def token_weights(mask, config, tokens, sequences):
    """Weights [B, T] of token losses, so that their weighted sum over all pieces is the minibatch's loss.

    Args:
        mask: [B, T], a piece of the minibatch.
        config: `aggregation`, `max_new_tokens` and `norm_length` are read.
        tokens: masked tokens of the whole minibatch.
        sequences: rows of the whole minibatch.
    """
    if config.aggregation == "token_mean":
        return mask / tokens
    if config.aggregation == "seq_mean_token_mean":
        return mask / (sequences * mask.sum(1, keepdim=True).clamp(min=1))
    divisors = {"seq_mean_token_sum": 1, "seq_mean_token_sum_norm": config.max_new_tokens}
    return mask / (sequences * divisors.get(config.aggregation, config.norm_length))


def policy_terms(config: BaseConfig, piece: dict, logprobs):
    """Loss per token [B, T] of policy, KL and mismatch correction, and what it measures on the way, by metric, [B, T].

    The correction weighs the policy loss only, not the KL, as in TRL.
    """
    old = piece.get("old_logprobs", logprobs.detach())
    mask, sampled = piece["loss_mask"], piece["rollout_logprobs"]
    known = {name: piece[name] for name in ("advantages", "chosen") if name in piece}
    loss, clipped = LOSSES[config.loss](logprobs=logprobs, old_logprobs=old, mask=mask, config=config, **known)
    how, w = mismatch_mode(config), likelihood_ratio(old, sampled)
    weights = mismatch_weights(old, sampled, mask, how, config.mismatch_low, config.mismatch_high)
    if how != "none":
        loss = loss * weights
    cut = (weights < w).float() if how == "tis" else (weights == 0).float()
    ratio = likelihood_ratio(logprobs.detach(), old)
    measured = {"policy/clip_frac": clipped, "policy/ratio_max": ratio}
    measured["kl/approx"] = ratio - 1 - ratio.log()  # k3 of KL(old || new) on samples of the old policy
    measured |= {"mismatch/weight_mean": w, "mismatch/kl": w - 1 - w.log(), "mismatch/cut_frac": cut}
    if "ref_logprobs" in piece and config.kl_in == "loss":
        measured["kl/ref"] = kl_estimate(logprobs.detach(), piece["ref_logprobs"], config.kl_estimator[:2])
        loss = loss + config.kl_coef * kl_loss(logprobs, old, piece["ref_logprobs"], config.kl_estimator)
    return loss, measured


def contributing(config: BaseConfig, batch: dict) -> list[int]:
    """Rows that can change a gradient; the others are not run through the networks, which saves their passes.

    All tokens of those are masked, or have advantage 0 and no other loss. Every process gets the same rows, as the
    advantages are the first process's.
    """
    rows = batch["loss_mask"].any(1)
    others = "values" in batch or config.entropy_coef or ("ref_logprobs" in batch and config.kl_in == "loss")
    if not others and not LOSSES[config.loss].trains_zero_advantage:
        rows &= (batch["advantages"] * batch["loss_mask"] != 0).any(1)
    return rows.nonzero().flatten().tolist()


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


def shape_rewards(scores, kl, response_mask, kl_coef: float):
    """Per-token rewards [B, T]: -kl_coef * kl everywhere, plus scores [B] on the last response token."""
    rewards = -kl_coef * kl * response_mask
    positions = torch.arange(response_mask.shape[1], device=response_mask.device)
    last = (positions * response_mask).argmax(dim=1, keepdim=True)  # [B, 1]
    return rewards.scatter_add(1, last, scores[:, None].to(rewards.dtype))


def move_to_turns(rewards, samples: list[dict]) -> None:
    """Move in rewards [B, T] what a conversation earned in earlier turns from its last sampled token to theirs."""
    first = rewards.shape[1] - max(len(s["response_ids"]) for s in samples)  # column in which responses begin
    for row, sample in enumerate(samples):
        *ends, last = [first + end - 1 for end in sample.get("turn_ends", [0])]
        for column, reward in zip(ends, sample.get("turn_rewards", [0.0])[:-1], strict=True):
            rewards[row, column] += reward
            rewards[row, last] -= reward


def overlong_penalty(length: int, limit: int, share: float) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13): 0 to 1 over the last `share` of `limit` tokens."""
    buffer = round(share * limit)
    return max(0.0, (length - (limit - buffer)) / buffer) if buffer else 0.0


def length_penalty(config: BaseConfig, sample: dict) -> float:
    """What is taken from a completion's score for its length; from a conversation's for its longest answer."""
    missing = 0.0 if sample["finished"] else config.missing_eos_penalty
    longest = max(sample.get("answer_lengths", [len(sample["response_ids"])]))  # max_new_tokens bounds each answer
    return missing + overlong_penalty(longest, config.max_new_tokens, config.overlong_share)


def shaped_score(config: BaseConfig, sample: dict) -> float:
    """A completion's score after the penalty for its length."""
    return sample["score"] - length_penalty(config, sample)


def equal_groups(samples: list[dict], size: int, each_reward: bool = False) -> list[bool]:
    """Of each group of `size` adjacent samples, whether the scored ones score alike, in total or by each reward.

    Such a group teaches nothing.
    """
    keys = [(s["score"], *(s["rewards"].values() if each_reward else ())) if is_scored(s) else None for s in samples]
    return [len({*keys[i : i + size]} - {None}) <= 1 for i in range(0, len(keys), size)]


def reward_parts(config: BaseConfig, sample: dict) -> list[float]:
    """Each reward function's own value, NaN where it does not apply, and the penalty for length as one more."""
    values = [math.nan if v is None else v for v in sample.get("rewards", {}).values()]
    return [*values, -length_penalty(config, sample)]


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


def grpo_advantages(scores, groups, config, alone: float = 0.0, **_):
    """(R - mean_g) / (std_g + eps): GRPO (Shao 2024, arXiv 2402.03300, section 4.1.2)."""
    mean, square, count = group_stats(scores, groups)
    n = (count - 1 if config.advantage_std == "unbiased" else count).clamp(min=1)
    return with_singles((scores - mean) / ((square / n).sqrt() + config.advantage_eps), scores, count, alone)


def mean_advantages(scores, groups, alone: float = 0.0, **_):
    """R - mean_g: Dr. GRPO (Liu 2025, arXiv 2503.20783, section 3.2); also tinker, prime-rl, nanochat."""
    mean, _, count = group_stats(scores, groups)
    return with_singles(scores - mean, scores, count, alone)


def rloo_advantages(scores, groups, alone: float = 0.0, **_):
    """R minus the mean of the others, n / (n - 1) (R - mean_g): RLOO (Ahmadian 2024, arXiv 2402.14740)."""
    mean, _, count = group_stats(scores, groups)
    return with_singles((scores - mean) * count / (count - 1).clamp(min=1), scores, count, alone)


def opo_advantages(scores, groups, mask, response_mask=None, alone: float = 0.0, **_):
    """R - sum_g(len R) / sum_g(len): the length-weighted optimal baseline of OPO (Hao 2025, arXiv 2505.23585)."""
    lengths = (mask if response_mask is None else response_mask).sum(1).to(scores.dtype)  # untrained tokens count
    mean, square, count = group_stats(scores, groups)
    weighted, total = (group_stats(x, groups)[0] for x in (lengths * scores, lengths))
    baseline = torch.where(square == 0, mean, weighted / total.clamp(min=1e-8))
    return with_singles(scores - baseline, scores, count, alone)


def gpg_advantages(scores, groups, alone: float = 0.0, **_):
    """alpha (R - mean_g), alpha = B / completions in groups of unequal score: GPG (Chu 2025, arXiv 2504.02546)."""
    _, square, _ = group_stats(scores, groups)
    alpha = len(scores) / (square > 0).sum().clamp(min=1)
    return alpha * mean_advantages(scores, groups, alone)


def gpg_verl_advantages(scores, groups, alone: float = 0.0, **_):
    """GPG as verl has it: alpha = B / completions whose score is not 0."""
    return len(scores) / (scores != 0).sum().clamp(min=1) * mean_advantages(scores, groups, alone)


def maxrl_advantages(scores, groups, **_):
    """(R - mean_g) / (mean_g + 1e-6): MaxRL (arXiv 2602.02710), for scores that are 0 or more."""
    if (scores < 0).any():
        raise RewardError(f"got a score of {scores.min():g}; expected 0 or more for maxrl; try --algorithm grpo")
    mean, _, _ = group_stats(scores, groups)
    return (scores - mean) / (mean + 1e-6)


def gdpo_advantages(parts, groups, mask, config, weights=None, alone: float = 0.0, **_):
    """Whitened sum over rewards of weight_r * GRPO's advantage of reward r alone: GDPO (arXiv 2601.05242).

    parts is [B, R], NaN where a reward does not apply; weights [R], 1 unless given. Returns [B, T].
    """
    total = torch.zeros_like(parts[:, 0])
    for r in range(parts.shape[1]):
        known = ~parts[:, r].isnan()
        advantages = grpo_advantages(parts[known, r], groups[known], config, alone)
        total[known] += advantages if weights is None else weights[r] * advantages
    return masked_whiten(total[:, None] * mask, mask)


def discounted_returns(rewards, mask, gamma: float):
    """Sum of the rewards from each token on, discounted; all [B, T], passing over tokens outside the mask."""
    return gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)[0]


def reinforce_pp_advantages(rewards, mask, config, **_):
    """Discounted returns, whitened over the batch's tokens, [B, T]: REINFORCE++ (Hu 2025, arXiv 2501.03262)."""
    return masked_whiten(discounted_returns(rewards, mask, config.gamma), mask)


def reinforce_pp_baseline_advantages(scores, groups, mask, alone: float = 0.0, **_):
    """R - mean_g, whitened over the batch's tokens, [B, T]: REINFORCE++-baseline (the same paper)."""
    return masked_whiten(mean_advantages(scores, groups, alone)[:, None] * mask, mask)


def remax_advantages(rewards, baselines, mask, **_):
    """Return from each token on, minus the greedy completion's score, [B, T]: ReMax (Li 2023, arXiv 2310.10505).

    Advantages are 0 where no reward applies to that completion, so that its score is NaN.
    """
    return (discounted_returns(rewards, mask, 1.0) - baselines[:, None] * mask).nan_to_num(0.0)


def gae(rewards, values, response_mask, gamma: float, gae_lambda: float):
    """Generalized advantage estimation (Schulman 2016, eq. 16), all [B, T].

    Tokens outside the mask (tool output, pads) are passed over: V_{t+1} and A_{t+1} are carried through them.

    Returns:
        (advantages, returns) with returns = advantages + values, both 0 outside the mask.
    """
    next_value = torch.zeros_like(values[:, 0])
    next_advantage = torch.zeros_like(values[:, 0])
    advantages = torch.zeros_like(values)
    start = int(response_mask.any(dim=0).int().argmax())  # no column before it has a response token
    for t in reversed(range(start, values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * gae_lambda * next_advantage
        keep = response_mask[:, t].bool()
        next_value = torch.where(keep, values[:, t], next_value)
        next_advantage = torch.where(keep, advantage, next_advantage)
        advantages[:, t] = torch.where(keep, advantage, torch.zeros_like(advantage))
    return advantages, (advantages + values) * response_mask


def gae_advantages(rewards, values, response_mask, mask, config, **_):
    """Generalized advantage estimation with a critic: (advantages, returns), [B, T] each; see `gae`."""
    if config.whiten_rewards:
        rewards = masked_whiten(rewards, mask, shift_mean=False)
    advantages, returns = gae(rewards, values, response_mask, config.gamma, config.gae_lambda)
    if config.whiten_advantages:
        advantages = masked_whiten(advantages, mask)
    return advantages, returns


@dataclass(frozen=True)
class Estimator:
    """An entry of ADVANTAGES: the function, and what it needs of a step beside scores and groups.

    All take by keyword what they need of one table: config, scores [B] (after KL and penalties), groups [B] (equal =
    same prompt), rewards [B, T], response_mask [B, T], mask [B, T] (its trained tokens), parts [B, R] (each reward
    by itself, NaN where it does not apply, and the penalty for length) and their weights [R], values [B, T] with a
    critic, baselines [B] with `greedy`. They return advantages [B] or [B, T]. A completion alone in its group has no
    baseline: it gets `alone` times its score, 0 unless given; verl's estimators have 1 there.
    """

    function: Callable
    by_token: bool = False  # reads `rewards` where they are paid, those of a conversation at each of its turns
    by_turn: bool = False  # can compare the answers of one turn
    critic: bool = False  # needs `values`, and returns (advantages, returns) of all sampled tokens
    greedy: bool = False  # needs `baselines`: the score of a greedy completion of each prompt
    each_reward: bool = False  # compares `parts`: a group teaches nothing only where it is equal in each of them

    def __call__(self, **table):
        return self.function(**table)


ADVANTAGES = {
    "gae": Estimator(gae_advantages, by_token=True, critic=True),
    "grpo": Estimator(grpo_advantages, by_turn=True),
    "mean": Estimator(mean_advantages, by_turn=True),
    "rloo": Estimator(rloo_advantages, by_turn=True),
    "opo": Estimator(opo_advantages),
    "gpg": Estimator(gpg_advantages),
    "gpg_verl": Estimator(gpg_verl_advantages),
    "maxrl": Estimator(maxrl_advantages),
    "gdpo": Estimator(gdpo_advantages, each_reward=True),
    "remax": Estimator(remax_advantages, by_token=True, greedy=True),
    "reinforce_pp": Estimator(reinforce_pp_advantages, by_token=True),
    "reinforce_pp_baseline": Estimator(reinforce_pp_baseline_advantages),
}


def estimator(config: BaseConfig) -> Estimator:
    """The entry of ADVANTAGES that --advantage names; a plain function there needs nothing special."""
    entry = ADVANTAGES[config.advantage]
    return entry if isinstance(entry, Estimator) else Estimator(entry)


def agreed_advantages(config: BaseConfig, batch: dict, samples: list[dict], kl_coef: float) -> dict:
    """`advantages_of` as the first process has it: sums on a GPU have no fixed order, and 0 may differ from 1.5e-8."""
    return {name: of_first_process(x) for name, x in advantages_of(config, batch, samples, kl_coef).items()}


def advantages_of(config: BaseConfig, batch: dict, samples: list[dict], kl_coef: float) -> dict:
    """KL to the reference, rewards after shaping, advantages, and returns with a critic, all [B, T].

    A completion to which no reward applies is in no baseline.
    """
    entry, table = estimator(config), sample_table(config, batch, samples, kl_coef)
    made = {"kl": table.pop("kl"), "rewards": table["rewards"]}
    made |= {name: torch.zeros_like(made["rewards"]) for name in ("advantages", "returns")[: 1 + entry.critic]}
    scored = torch.tensor(list(map(is_scored, samples)), device=table["mask"].device)
    if scored.any():
        weights = table.pop("weights")  # one for each reward, not for each row
        part = {name: x[scored] for name, x in table.items()}
        if config.turn_baseline == "turn":
            values = advantages_by_turn(config, part, answer_numbers(samples, batch["response_mask"])[scored])
        else:
            values = entry(config=config, **part, weights=weights)
        for name, x in zip(("advantages", "returns"), values if entry.critic else [values], strict=False):
            made[name][scored] = (x if x.dim() == 2 else x[:, None]) * part["mask"]
    return made


def sample_table(config: BaseConfig, batch: dict, samples: list[dict], kl_coef: float) -> dict:
    """What every estimator may read, see Estimator; and kl [B, T]."""
    response = batch["response_mask"]

    def column(values):
        return torch.tensor(values, dtype=torch.float32, device=response.device)

    kl = torch.zeros(response.shape, device=response.device)
    if "ref_logprobs" in batch and "old_logprobs" in batch:
        kl = kl_estimate(batch["old_logprobs"], batch["ref_logprobs"], config.kl_estimator[:2]) * response
    in_reward = kl_coef if config.kl_in == "reward" else 0.0
    rewards = shape_rewards(column([shaped_score(config, s) for s in samples]), kl, response, in_reward)
    if estimator(config).by_token:
        move_to_turns(rewards, samples)
    table = {"kl": kl, "rewards": rewards, "scores": rewards.sum(1), "mask": batch["loss_mask"]}
    table |= {"response_mask": response, "parts": column([reward_parts(config, s) for s in samples])}
    table["weights"] = [*samples[0].get("weights", {}).values(), 1.0]
    table["groups"] = torch.tensor([s["group"] for s in samples], device=response.device)
    if "values" in batch:
        table["values"] = batch["values"]
    if "baseline" in samples[0]:
        table["baselines"] = column([s["baseline"] for s in samples])
    return table


def answer_numbers(samples: list[dict], response_mask):
    """Which answer of its conversation a sampled token belongs to, from 1 on, [B, T]; 0 for all other tokens."""
    first = response_mask.shape[1] - max(len(s["response_ids"]) for s in samples)  # column in which responses begin
    numbers = torch.ones_like(response_mask)
    for row, sample in enumerate(samples):
        for end in sample.get("turn_ends", ())[:-1]:
            numbers[row, first + end :] += 1
    return numbers * response_mask


def advantages_by_turn(config: BaseConfig, table: dict, numbers):
    """Advantages [B, T] of each answer among those of the same number, by `answer_numbers`, in its group."""
    advantages = torch.zeros(numbers.shape, device=numbers.device)
    for number in range(1, int(numbers.max()) + 1):
        reached = (numbers == number).any(1)
        values = estimator(config)(config=config, **{name: x[reached] for name, x in table.items()})
        advantages[reached] += values[:, None] * (numbers[reached] == number)
    return advantages


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


def enter_own(config) -> None:
    """Enter what `advantage` and `loss` name as FILE.py:function into ADVANTAGES, GROUPED and LOSSES."""
    if is_own(config.advantage) and config.advantage not in ADVANTAGES:
        function = ADVANTAGES[config.advantage] = own_function("advantage", config.advantage)
        if "groups" in function.names:
            GROUPED.add(config.advantage)
    if is_own(config.loss) and config.loss not in LOSSES:
        LOSSES[config.loss] = PolicyLoss(own_function("loss", config.loss), trains_zero_advantage=True)


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


def lr_factor(step: int, total: int, warmup: int, schedule: str) -> float:
    """Multiplier of the learning rates at a 0-based step: linear warm-up, then constant, linear or cosine decay."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return {"constant": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}[schedule]


def recomputed(layer, forward, *args):
    """What a layer's forward returns, in eval mode: Falcon's takes dropout from the config. Backward runs it again."""

    def run(*args):
        layer.training = False
        try:
            return forward(*args)
        finally:
            layer.training = True

    return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=False)


def switch_checkpointing(models: Models, on: bool) -> None:
    """Put the layers that recompute into train mode, or back; all else stays in eval mode, free of dropout."""
    for network in filter(None, (models.policy, models.critic and models.critic.backbone)):
        for layer in recomputing_layers(network):
            layer.training, layer._gradient_checkpointing_func = on, functools.partial(recomputed, layer)


def adamw(config: BaseConfig, networks: list[tuple]):
    """AdamW with a group for the trained weights of each (network, learning rate): the policy's, then the critic's."""
    trained = ([p for p in network.parameters() if p.requires_grad] for network, _ in networks)
    groups = [{"params": p, "lr": lr, "initial_lr": lr} for p, (_, lr) in zip(trained, networks, strict=True)]
    betas = (0.9, config.adam_beta2)
    return torch.optim.AdamW(groups, betas=betas, eps=config.adam_eps, weight_decay=config.weight_decay, fused=True)


def apply_gradients(config: BaseConfig, optimizer, scaler):
    """Clip gradients, and step unless one is not finite. Returns the norms, one per network."""
    scaler.unscale_(optimizer)
    clip = torch.nn.utils.clip_grad_norm_
    norms = torch.stack([clip(group["params"], config.max_grad_norm).cpu() for group in optimizer.param_groups])
    if torch.isfinite(norms).all():
        scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return norms


class Statistics:
    """What an update measures, by name: over its micro-batches and processes, by "sum", "mean" or "max"."""

    def __init__(self, reductions: dict[str, str], device):
        self.maxima = {name for name, reduction in reductions.items() if reduction == "max"}
        self.values = {name: torch.zeros((), device=device) for name in reductions}

    def add(self, figures: dict) -> None:
        """Take in a micro-batch's share of each figure, a scalar tensor."""
        for name, value in figures.items():
            before = self.values[name]
            self.values[name] = torch.maximum(before, value) if name in self.maxima else before + value

    def add_means(self, figures: dict, mask, count) -> None:
        """Take in figures per token [B, T]: their sums where `mask` is 1, over the `count` of the whole minibatch."""
        sums = (torch.stack([*figures.values()]) * mask).sum((1, 2)) / count
        self.add(dict(zip(figures, sums, strict=True)))

    def sum_over_processes(self) -> None:
        """Sum what is summed; each process keeps its own maxima, which `updates_metrics` compares."""
        names = [name for name in self.values if name not in self.maxima]
        sums = sum_over_processes(torch.stack([self.values[name] for name in names])).cpu()
        self.values |= zip(names, sums, strict=True)


def run_updates(
    config: BaseConfig, optimizer, scaler, step: int, bad: int, accumulate: Callable, active=None
) -> tuple[dict, int]:
    """Run a step's epochs and minibatches; returns metrics of the applied updates, and the number of bad ones in a row.

    `accumulate` adds the gradients of rows, and returns their Statistics. Minibatches without `active` rows (None: all)
    are skipped. DivergedError is raised after `max_bad_updates` in a row, `bad` of them before this step.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * lr_factor(step, config.steps, config.warmup_steps, config.lr_schedule)
    applied, updates, target_kl = [], 0, getattr(config, "target_kl", 0.0)
    for epoch in range(config.ppo_epochs):
        order = np.random.default_rng([config.seed, 2, step, epoch]).permutation(config.batch_size)
        for rows in order.reshape(config.minibatches, -1):
            if active is not None and active.isdisjoint(rows.tolist()):
                continue
            statistics = accumulate(rows)
            statistics.sum_over_processes()
            if target_kl and statistics.values.get("kl/approx", 0.0) > target_kl:
                optimizer.zero_grad()
                return updates_metrics(optimizer, applied, updates), bad
            norms, updates = apply_gradients(config, optimizer, scaler), updates + 1
            if torch.isfinite(norms).all():
                statistics.values |= zip(("optim/grad_norm", "optim/critic_grad_norm"), norms, strict=False)
                applied.append(statistics)
                bad = 0
                continue
            bad += 1
            if bad >= config.max_bad_updates:
                raise DivergedError(
                    f"step {step + 1}: got {bad} non-finite gradients in a row; expected finite ones; "
                    "try a lower --lr, or --precision bf16 in place of fp16"
                )
    return updates_metrics(optimizer, applied, updates), bad


def updates_metrics(optimizer, applied: list[Statistics], updates: int) -> dict:
    """Means over a step's applied updates, maxima over these and all processes, and their numbers."""
    metrics, maxima = {}, applied[0].maxima if applied else ()
    largest = gather_rows([{name: max(s.values[name].item() for s in applied) for name in maxima}])
    if applied:
        names = [name for name in applied[0].values if name not in maxima]
        means = torch.stack([torch.stack([s.values[name] for name in names]) for s in applied]).mean(0)
        metrics = dict(zip(names, means.tolist(), strict=True))
        metrics |= {name: max(one[name] for one in largest) for name in maxima}
    metrics |= {"optim/updates": len(applied), "optim/skipped_updates": updates - len(applied)}
    return metrics | {"optim/lr": optimizer.param_groups[0]["lr"]}


BUCKET_BYTES = 25 * 2**20  # gradients that are summed at once: the default of torch's DistributedDataParallel


def sum_gradients(networks: list) -> None:
    """Sum the gradients of networks over the processes; a parameter that no process has reached keeps none."""
    if world()[1] == 1:
        return
    params = [p for network in networks for p in network.parameters() if p.requires_grad]
    reached = torch.tensor([float(p.grad is not None) for p in params], device=params[0].device)
    reached = sum_over_processes(reached).tolist()
    # AdamW leaves out what has no gradient; at a gradient of 0 it would count a step
    for bucket in in_buckets([p for p, anywhere in zip(params, reached, strict=True) if anywhere]):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = sum_over_processes(torch.cat([grad.reshape(-1) for grad in grads]))
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = part.view_as(p)


def in_buckets(params: list) -> Iterator[list]:
    """Parameters in runs of one dtype and device, of BUCKET_BYTES at most where it is not a single one."""
    bucket, size = [], 0
    for p in params:
        more = p.numel() * p.element_size()
        if bucket and (size + more > BUCKET_BYTES or (p.dtype, p.device) != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket, size = [], 0
        bucket, size = [*bucket, p], size + more
    if bucket:
        yield bucket


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


def longest_row(config: BaseConfig, prompt: int) -> int:
    """Most tokens of a row, where the longest prompt has so many."""
    return config.conversation_tokens if getattr(config, "environment", "") else prompt + config.max_new_tokens


def network_weights(network, width: float, embedding_width: float) -> float:
    """Bytes of a frozen network, whose embedding and output layer have a width of their own."""
    shape, parameters = shape_of(network), sum(p.numel() for p in network.parameters())
    return frozen_bytes(shape, parameters, width, embedding_width) if shape else parameters * width


def memory_of_trainer(
    config: BaseConfig, model, prompt: int, processes: int, buffers: int, frozen: dict[str, float], networks: int = 1
) -> dict[str, float]:
    """Bytes per process of a trainer with this bundle's step, see `memory_of_run`; {} for an unknown architecture.

    The largest micro-batch has rows as long as the longest prompt and completion. It is the plain one of rows x
    columns: where prompts are run once for their rows, and no pads, less is taken. `networks` of the size of `model`
    are trained, `frozen` ones are given in bytes; `buffers` as of `head_bytes`.
    """
    shape, parameters = shape_of(model), sum(p.numel() for p in model.parameters())
    if not shape:
        return {}
    longest, share = longest_row(config, prompt), config.batch_size // processes
    rows = min(config.micro_batch_tokens // longest, share // config.minibatches)
    run = pass_of_rows(config, model, max(1, rows), longest)
    trained = tuple(networks * x for x in network_bytes(config, shape, parameters))
    at_once = 0 if config.rollout_engine == "vllm" else min(config.rollout_batch_size or share, share)
    piece = min(max(config.logits_chunk, shape.vocab), run.tokens * shape.vocab)  # every token is trained on
    head = head_bytes(shape, run, piece, buffers)
    memory = memory_of_run(shape, run, trained, frozen, head, at_once, config.max_new_tokens)
    memory["peak of sampling"] += folded_bytes(config, shape, run)
    return memory


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
LEAST_LOGITS = 2**24  # numbers of a piece below which the output layer is slow
ROLLOUT_SIZES = ("micro_batch_tokens", "logits_chunk", "rollout_batch_size")
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


def rollout_sizes(config: BaseConfig, estimate: Callable, prompt: int, processes: int) -> Sizes:
    """The sizes of trainers with this bundle's step, whose longest prompt has `prompt` tokens."""
    bits = config.rollout_engine == "hf" and not config.merge_lora
    recompute = {} if config.gradient_checkpointing else {"gradient_checkpointing": True}

    def choices(changed: BaseConfig, heed: bool) -> dict[str, list[dict]]:
        tokens, chunk, rows = (getattr(changed, name) for name in ROLLOUT_SIZES)
        free = {name: not heed or is_chosen_here(changed, name) for name in ROLLOUT_SIZES}
        budgets = ladder(tokens, longest_row(changed, prompt)) if free["micro_batch_tokens"] else [tokens]
        chunks = ladder(chunk, LEAST_LOGITS) if free["logits_chunk"] else [chunk]
        counts = [rows, *ladder(rows or changed.batch_size // processes, 1)] if free["rollout_batch_size"] else [rows]
        return {
            UPDATE: [{"micro_batch_tokens": a, "logits_chunk": b} for a in budgets for b in chunks],
            SAMPLING: [{"rollout_batch_size": count} for count in counts],
        }

    def text(changed: BaseConfig) -> str:
        rows = changed.rollout_batch_size
        return f"micro-batches of {changed.micro_batch_tokens:,} tokens" + (f", {rows} sampled at once" if rows else "")

    lighter = lighter_settings(config, "max_new_tokens", recompute, bits)
    return Sizes(estimate, choices, text, lighter, config.vllm_memory if config.rollout_engine == "vllm" else 0.0)


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


@dataclass(frozen=True)
class TrainState:
    """What a checkpoint keeps of a run beside its networks. `Progress.write` alone puts another in its place."""

    step: int = 0  # steps that are done
    kl_coef: float = 0.0  # the next step's
    kept: list[float] = field(default_factory=lambda: [0.0, 0.0])  # groups that differed, groups sampled, recent ones
    bad: int = 0  # non-finite updates in a row
    eval_before: dict | None = None
    eval_after: dict | None = None
    seconds: float = 0.0  # of earlier sessions
    prompts: int = 0  # taken from the stream
    pending: dict | None = None  # metrics of a step that is still to be evaluated


def save_checkpoint(config: BaseConfig, models: Models, optimizer, scaler, state: TrainState) -> None:
    """Save everything that the next step depends on, atomically; keep the newest few."""
    states = gather_rows([rng_state()])

    def write(folder: Path) -> None:
        save_network(models.policy, folder / "policy")
        save_tokenizer(models.tokenizer, folder / "policy")
        if models.critic:
            trained = {name for name, p in models.critic.named_parameters() if p.requires_grad}
            torch.save({k: v for k, v in models.critic.state_dict().items() if k in trained}, folder / "critic.pt")
        saved = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(), "rng": states}
        torch.save(saved, folder / "optimizer.pt")
        saved = dataclasses.asdict(state) | {"config": dataclasses.asdict(config)}
        (folder / "state.json").write_text(json.dumps(saved, indent=1))

    target = Path(config.output_dir) / "checkpoints" / f"step-{state.step:06d}"
    with raised_in_all():  # no process goes on before the checkpoint exists
        if world()[0] == 0:
            saved = json.loads((target / "state.json").read_text()) if target.exists() else None
            if not saved or saved.get("pending") != state.pending:  # else nothing has changed since
                write_folder(target, write)
            for old in checkpoints(config)[: -config.keep_checkpoints]:
                os.replace(old, old.with_name(f".{old.name}.gone"))  # a kill while it is deleted would leave half of it
            for gone in target.parent.glob(".step-*.gone"):
                shutil.rmtree(gone, ignore_errors=True)


def checkpoints(config: BaseConfig) -> list[Path]:
    """Complete checkpoints of the run, oldest first."""
    return sorted((Path(config.output_dir) / "checkpoints").glob("step-*"))


def restore(config: BaseConfig, models: Models, optimizer, scaler, checkpoint: Path | None) -> TrainState:
    """Load optimizer, scaler and generators of a checkpoint; return its state, or that of a new run.

    A new run's weights are those of the first process: a user's code may have seeded each one differently.
    """
    if not checkpoint:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.data.copy_(of_first_process(p.data))
        return TrainState(kl_coef=config.kl_coef)
    loaded = torch.load(checkpoint / "optimizer.pt", map_location=models.device, weights_only=False)
    optimizer.load_state_dict(loaded["optimizer"])
    scaler.load_state_dict(loaded["scaler"])
    restore_rng(loaded["rng"][world()[0] % len(loaded["rng"])])
    saved = json.loads((checkpoint / "state.json").read_text())
    saved.setdefault("prompts", saved["step"] * config.batch_size // config.group_size)  # runs older than the key
    return TrainState(**{f.name: saved[f.name] for f in dataclasses.fields(TrainState) if f.name in saved})


def note_schedule(schedule: str, factor: Callable[[int, int], float], step: int, before: int, steps: int) -> None:
    """Say so where `steps` in place of `before` move the learning rate after `step` steps, `factor(step, of)`."""
    old, new = (factor(min(step, number), number) for number in (before, steps))
    if step < steps and old != new:
        say(
            f"note: got --resume with steps {before} -> {steps}: by {schedule}, the learning rate of step {step + 1} "
            f"is {new:.3g} of its peak, not {old:.3g}"
        )


def find_checkpoint(config: BaseConfig) -> Path | None:
    """Return the checkpoint to resume from, if any; refuse another run's folder and a resume with other settings."""
    saved = checkpoints(config) if check_folder(config) else []
    if config.resume and not saved:
        say(f"warning: got --resume, but {config.output_dir} holds no checkpoint of it; starting at step 0")
    if saved:
        step = int(saved[-1].name.removeprefix("step-"))
        before = saved_settings(Path(config.output_dir)).get("steps", config.steps)
        factor = functools.partial(lr_factor, warmup=config.warmup_steps, schedule=config.lr_schedule)
        note_schedule(f"lr_schedule {config.lr_schedule}", factor, step, before, config.steps)
    return saved[-1] if saved else None


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
EXAMPLE_KEYS = ("prompt", "completion", "score", "messages")  # of summary.json; the last of conversations only


def reward_means(samples: list[dict]) -> dict[str, float]:
    """Mean of each reward function over the samples to which it applies."""
    means = {}
    for name in samples[0]["rewards"]:
        values = [s["rewards"][name] for s in samples if s["rewards"][name] is not None]
        means |= {name: sum(values) / len(values)} if values else {}
    return means


def rollout_metrics(samples: list[dict], lengths: list[int], timer: dict) -> dict[str, float]:
    """Rewards, where there are some, lengths and speed of a rollout."""
    scores, metrics = known_scores(samples), {}
    if scores:
        metrics = {"reward/mean": statistics.fmean(scores), "reward/std": statistics.pstdev(scores)}
        metrics |= {f"reward/{name}": mean for name, mean in reward_means(samples).items()}
    metrics["rollout/length_mean"] = statistics.fmean(lengths)
    metrics["rollout/truncated_frac"] = statistics.fmean(not s["finished"] for s in samples)
    return metrics | {"rollout/tokens_per_s": sum(lengths) / max(timer["rollout"], 1e-9)}


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


def grad_scaler(config: BaseConfig, device):
    """The scaler of gradients of an fp16 run; one that does nothing otherwise."""
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=config.precision == "fp16")
    scaler.scale(torch.zeros((), device=device))  # makes its state: a process may have no rows in its first update
    return scaler


def begin_run(config: BaseConfig, models: Models, optimizer, scaler, state: TrainState, started: float) -> "Progress":
    """Make the output folder and the log, once all else is known to be in order."""
    check_stop_when(config.stop_when)
    make_folder(config)
    log = RunLog(config, state.step or -1, config.steps, config.report_to)
    write_settings(config)
    save = functools.partial(save_checkpoint, config, models, optimizer, scaler)
    return Progress(config, models, state, started, log, save)


def sampling_advice(config: BaseConfig) -> str:
    """What to try where memory ran out while completions were sampled."""
    if config.rollout_engine == "vllm":
        return f"--resume with a lower --vllm_memory than {config.vllm_memory:g}"
    rows = config.rollout_batch_size or max(1, config.batch_size // world()[1])
    shorter = f"a new run with a lower --max_new_tokens than {config.max_new_tokens}"
    return f"--resume --rollout_batch_size {rows // 2}, or {shorter}" if rows > 1 else shorter


def update_advice(config: BaseConfig) -> str:
    """What to try where memory ran out in an update."""
    flags = f"--micro_batch_tokens {max(1, config.micro_batch_tokens // 2)} --logits_chunk {config.logits_chunk // 4}"
    return f"--resume {flags}" + ("" if config.gradient_checkpointing else ", or --resume --gradient_checkpointing")


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps (0: never) happens after this one."""
    return bool(every) and step % every == 0


def is_asked(step: int) -> bool:
    """Whether a run is judged after this step: 3, 10, 30, 100, 300 …"""
    return step >= 3 and str(step).rstrip("0") in ("1", "3")


def is_sampled(step: int, every: int) -> bool:
    """Whether samples of a step are logged: as often as asked, and of steps 1 and 3, which show most faults."""
    return is_due(step, every) or (bool(every) and step in (1, 3))


class Progress:
    """Keeps the state of a run, and does what surrounds its steps; the session `started` at this perf_counter()."""

    def __init__(
        self, config: BaseConfig, models: Models, state: TrainState, started: float, log: RunLog, write_checkpoint
    ):
        self.config, self.models, self.state, self.started = config, models, state, started
        self.log, self.write_checkpoint, self.stop = log, write_checkpoint, StopRequest()
        self.evaluate, self.rng = None, rng_state()
        self.write()

    def run(self, step: Callable, evaluate: Callable | None, faults: tuple) -> int:
        """Do the steps that are left, and what follows the last; returns the exit code.

        Args:
            step: does a step from a state; returns its metrics, its samples, and the state's fields after it.
            evaluate: returns (metrics, samples) of the held-out prompts at a step; None where there are none.
            faults: errors of scoring, which changes no weights: the last step is saved, its evaluation pending; so it
                is where memory ran out before an update.
        """
        self.evaluate = evaluate
        try:
            self.begin()
            while self.state.step < self.config.steps:
                begin, self.rng = time.perf_counter(), rng_state()
                result = step(self.state)
                THREADS.after(time.perf_counter() - begin)
                if code := self.end_step(*result):
                    return code
            self.log.plot()
            export(self.config, self.models, Path(self.config.output_dir) / "final")
            summary = run_summary(self.config, vars(self.state)) | {"seconds": round(self.seconds(), 1)}
        except StopRequested as stop:
            restore_rng(self.rng)  # as nothing had been drawn for what is left
            self.save()
            return self.stopped(stop.signum)
        except (*faults, MemoryShortage) as fault:
            if getattr(fault, "before_update", True):
                restore_rng(self.rng)  # as nothing had been drawn for what is left
                self.save()
            raise
        finally:
            self.log.close()
            self.stop.restore()
        report(self.config, summary)
        return 0

    def write(self, **fields) -> None:
        """Change fields of the state."""
        self.state = dataclasses.replace(self.state, **fields)
        self.stop.can_save = self.state.step > 0

    def seconds(self) -> float:
        """Time of the run so far, earlier sessions included."""
        return self.state.seconds + time.perf_counter() - self.started

    def save(self) -> None:
        """Write a checkpoint, of step 0 none: it would keep the settings and the evaluation of what has failed."""
        if self.state.step:
            self.write_checkpoint(dataclasses.replace(self.state, seconds=self.seconds()))

    def held_out(self, step: int) -> dict:
        """Metrics of the held-out prompts, and a few examples."""
        with room_for("in the evaluation", sampling_advice(self.config), before_update=True):
            metrics, samples = self.evaluate(step)
        self.log.samples(step, "eval", samples)
        examples = [{k: s[k] for k in EXAMPLE_KEYS if k in s} for s in samples[:EXAMPLES]]
        return {"metrics": metrics, "examples": examples}

    def begin(self) -> None:
        """Evaluate before the first step; a resumed run may still owe its last step's evaluation."""
        if self.evaluate and self.state.eval_before is None:
            self.write(eval_before=self.held_out(0))
            self.log.metrics(0, self.state.eval_before["metrics"])
        if self.state.pending:
            self.log_pending()
        forget_peak()

    def log_pending(self) -> None:
        """Evaluate where it is time, and log the metrics of the step."""
        step, metrics = self.state.step, self.state.pending
        if self.evaluate and (step == self.config.steps or is_due(step, self.config.eval_every)):
            self.write(eval_after=self.held_out(step))
            metrics |= self.state.eval_after["metrics"]
        self.log.metrics(step, metrics)
        self.write(pending=None)

    def end_step(self, metrics: dict, samples: list[dict], after: dict) -> int:
        """Write the state after a step; evaluate, log, save; returns the exit code where the run ends early, else 0."""
        config, step = self.config, self.state.step + 1
        self.write(step=step, pending=metrics | memory_metrics(), **after)
        if is_sampled(step, config.sample_every):
            self.log.samples(step, "train", samples)
        self.rng = rng_state()
        self.log_pending()
        self.log.judge(step, config.steps, self.stop)
        if is_due(step, config.plot_every):
            self.log.plot()
        signum = self.stop.agreed()
        if signum or is_due(step, config.save_every) or step == config.steps:
            self.save()
        forget_peak()
        if not signum or step == config.steps:
            return 0
        return self.stopped(signum)

    def stopped(self, signum: int) -> int:
        self.log.plot()
        return say_stopped(signum, self.state.step)


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


# ----------------------------------------------------------------------- settings (src/programs/ppo_train/settings.py)


@in_order(advantage="group_size")
@dataclass
class Config(PolicySettings):
    """All settings and their defaults: those of PolicySettings and these; each is a flag and a key of --config."""

    # algorithm: choices
    advantage: str = setting(
        None, "advantage estimator, or your own, FILE.py:function of scores, groups …", lambda: NamesOrFiles(ADVANTAGES)
    )
    loss: str = setting(
        None, "policy loss, or your own, FILE.py:function of logprobs, old_logprobs …", lambda: NamesOrFiles(LOSSES)
    )
    aggregation: str = setting(None, "how token losses become one number", lambda: list(AGGREGATIONS))

    def __post_init__(self):
        super().__post_init__()
        enter_own(self)


def parse_config(argv: list[str]):
    return parse_settings(argv, Config, __doc__)


# ------------------------------------------------------------------------- rollout (src/programs/ppo_train/rollout.py)


def converse(
    setup: PlaySetup, config: Config, models: Models, engine, reward: Reward, rows: list[dict], noise, timer: dict
) -> list[dict]:
    """Play and score one conversation per row; every process gets the whole batch.

    noise [rows, max_turns x draws of an answer] holds those of a turn after those of the turn before; None is greedy.
    """
    width = 0 if noise is None else noise.shape[1] // config.max_turns

    def conversations(local_rows: list[dict], draws) -> list[dict]:
        generate = turn_sampler(engine)

        def answer(prompts: list[list[int]], numbers: list[int], turn: int) -> list:
            answer_draws = None if draws is None else draws[numbers, turn * width : (turn + 1) * width]
            return generate(prompts, answer_draws, numbers)

        start = time.perf_counter()
        talks = play(local_rows, setup, answer)
        sampled = time.perf_counter()
        values = score_talks(setup, local_rows, talks, reward)
        count_seconds(timer, start, sampled)
        weights = score_weights(reward, values[0]) if values else {}
        played = zip(local_rows, talks, values, strict=True)
        return [conversation_sample(models, row, conversation, of_row, weights) for row, conversation, of_row in played]

    return shared_out(conversations, rows, noise)


def conversation_sample(models: Models, row: dict, conversation: Conversation, values: dict, weights: dict) -> dict:
    """A conversation as a sample: the whole response, a mask of what was sampled, and its score."""
    answers = [conversation.response_ids[start:end] for start, end in conversation.spans]
    said = [visible_text(models.tokenizer, ids, models.eos_ids) for ids in answers]
    taken = ("prompt_ids", "response_ids", "response_mask", "rollout_logprobs", "ended_by", "turn_rewards", "messages")
    return {name: getattr(conversation, name) for name in taken} | {
        "prompt": row["prompt"],
        "completion": "\n".join(said),  # what was sampled
        "answer_lengths": list(map(len, answers)),
        "finished": all(ids[-1] in models.eos_ids for ids in answers),
        "rewards": values,
        "weights": weights,
        "score": sum(weights[name] * value for name, value in values.items() if value is not None),
        "turn_ends": [end for _, end in conversation.spans],
        "pieces": pieces(models.tokenizer, conversation),
        "talk": dataclasses.replace(
            conversation, kind=None, environment=None
        ),  # for metrics; processes exchange samples
    }


MEMORY = 0.9  # of the share of groups that were kept: what a step counts beside the next one


class Sampler:
    """Samples the batches of a run, by `collect` or the like; keeps how many groups differed."""

    def __init__(self, config, models: Models, engine, reward: Reward, rows, state: TrainState, sample=collect):
        self.config, self.models, self.engine, self.reward, self.rows = config, models, engine, reward, rows
        self.sample, self.position, self.kept, self.none_in_a_row = sample, state.prompts, state.kept, 0

    def state(self) -> dict:
        return {"prompts": self.position, "kept": self.kept}

    def rollout(self, step: int, timer: dict) -> tuple[list[dict], list[dict]]:
        """Sample the batch of a step, `group_size` completions of each prompt, from the next prompts of the stream.

        With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2), newly sampled groups replace those of equal score,
        in at most `max_refills` further rounds. Places still open are then filled with equal-score groups, masked.
        Differing groups beyond the batch are not used.

        Returns:
            (samples of the batch, all that were sampled).
        """
        config, size, each = self.config, self.config.group_size, estimator(self.config).each_reward
        self.engine.sync(step)
        prompts, kept, spare, drawn = config.batch_size // size, [], [], []
        for attempt in range(1 + config.dynamic_sampling * config.max_refills):
            samples = self.round(step, attempt, self.groups_to_sample(prompts - len(kept)), timer)
            drawn += [one | {"round": attempt} for one in samples]
            for i, equal in enumerate(equal_groups(samples, size, each)):
                group = samples[i * size : (i + 1) * size]
                (spare if config.dynamic_sampling and equal else kept).append(group)
            if len(kept) >= prompts:
                break
        self.none_in_a_row = 0 if any(map(is_scored, drawn)) else self.none_in_a_row + 1
        refuse_unscored(self.none_in_a_row, config.steps, drawn[0]["rewards"])
        differ = [not equal for equal in equal_groups(drawn, size, each)]
        self.kept = [MEMORY * old + new for old, new in zip(self.kept, (sum(differ), len(differ)), strict=True)]
        chosen = (kept + spare)[:prompts]
        batch = [s | {"group": i, "filler": i >= len(kept)} for i, group in enumerate(chosen) for s in group]
        return batch, drawn

    def round(self, step: int, attempt: int, count: int, timer: dict) -> list[dict]:
        """Scored completions of `count` prompts, those of a prompt beside each other."""
        config, size = self.config, self.config.group_size
        picked = batch_rows(self.rows, config, self.position, count)
        self.position += count
        width = config.max_new_tokens if config.rollout_engine == "hf" else 1  # one seeds vLLM
        width *= config.max_turns if config.environment else 1
        seed = [config.seed, 3, step, attempt] if attempt else [config.seed, 3, step]
        noise = np.random.default_rng(seed).random((count * size, width))
        given = self.config, self.models, self.engine, self.reward
        samples = self.sample(*given, [row for row in picked for _ in range(size)], noise, timer)
        if estimator(config).greedy:
            greedy = self.sample(*given, picked, None, timer)
            for i, one in enumerate(samples):
                other = greedy[i // size]
                one["baseline"] = shaped_score(config, other) if is_scored(other) else math.nan
        return samples

    def groups_to_sample(self, missing: int) -> int:
        """Groups of which `missing` are likely to differ, at most `max_oversampling` times as many.

        With n groups that are kept at rate p, n p - sqrt(n p (1 - p)) = missing: enough in about five rounds of six.
        """
        kept, sampled = self.kept
        most = int(missing * self.config.max_oversampling)
        if not kept:  # nothing is known, or none differed
            return most if sampled else missing
        p = kept / sampled
        spread = math.sqrt(p * (1 - p))
        root = (spread + math.sqrt(spread**2 + 4 * p * missing)) / (2 * p)
        return max(missing, min(math.ceil(root**2 - 1e-9), most))


def sample_metrics(config: Config, batch: dict, samples: list[dict], timer: dict) -> dict:
    """Metrics of a rollout: rewards, KL to the reference, lengths, explained variance, speed.

    `samples` are all that were sampled; with dynamic sampling, `batch` holds only those that train.
    """
    metrics = rollout_metrics(samples, sampled_lengths(samples), timer)
    if "talk" in samples[0]:
        metrics |= play_metrics([s["talk"] for s in samples])
    if "values" in batch:
        spread = explained_variance(batch["values"], batch["returns"], batch["loss_mask"])
        metrics["value/explained_variance"] = spread
    if config.group_size > 1:
        equal = equal_groups(samples, config.group_size, estimator(config).each_reward)
        metrics["reward/zero_std_frac"] = statistics.fmean(equal)
    if config.dynamic_sampling:
        metrics["rollout/samples"] = len(samples)
        metrics["rollout/rounds"] = 1 + max(s.get("round", 0) for s in samples)
        differ = equal.count(False)
        metrics["rollout/unused"] = max(0, differ * config.group_size - config.batch_size)
    if "ref_logprobs" in batch and "old_logprobs" in batch:
        metrics["kl/ref"] = masked_mean(batch["kl"], batch["response_mask"]).item()
        metrics["kl/ref_completion"] = batch["kl"].sum(1).mean().item()
    if "old_logprobs" in batch:
        gap = (batch["old_logprobs"] - batch["rollout_logprobs"]).abs() * batch["response_mask"]
        metrics["rollout/logprob_gap_max"] = gap.max().item()
    return metrics


def sampled_lengths(samples: list[dict]) -> list[int]:
    """Tokens that were sampled, of each sample; tools' and replies' are not."""
    return [sum(s["response_mask"]) if "response_mask" in s else len(s["response_ids"]) for s in samples]


def evaluate(
    config: Config, models: Models, engine, reward: Reward, rows: list[dict], sample: Callable = collect
) -> tuple[dict, list[dict]]:
    """Greedy held-out evaluation: mean of each reward, and accuracy = share with full marks (>= 1) from the first.

    `sample` takes the place of `collect`.
    """
    samples = sample(config, models, engine, reward, rows, None, {})
    return held_out_figures(samples, sampled_lengths(samples), rows), samples


# --------------------------------------------------------------------------- models (src/programs/ppo_train/models.py)


def make_critic(config: Config, policy, device):
    """A value head that starts at 0, with its own backbone when the critic is separate."""
    critic = torch.nn.Module()
    critic.backbone = None
    if config.critic == "separate":
        critic.backbone = load_network(transformers.AutoModel, config.critic_model or config.model, config, device)
        known, used = (m.get_input_embeddings().weight.shape[0] for m in (critic.backbone, unwrapped(policy)))
        got = f"got critic_model {config.critic_model!r} of {known} tokens"
        need(known >= used, f"{got}; expected the policy's {used} at least")
        if config.lora_rank:
            critic.backbone = add_lora(critic.backbone, config)
    size = unwrapped(critic.backbone or policy).config.get_text_config().hidden_size
    critic.head = torch.nn.Linear(size, 1, device=device)  # float32 whatever the backbone's dtype
    torch.nn.init.zeros_(critic.head.weight)
    torch.nn.init.zeros_(critic.head.bias)
    return critic


def load_models(config: Config, device, checkpoint: Path | None = None, tokenizer=None) -> Models:
    """Load tokenizer, policy, critic and (with KL) reference, from a checkpoint where there is one."""
    tokenizer = tokenizer or load_tokenizer(config)
    policy = load_policy(config, device, checkpoint and checkpoint / "policy")
    add_sparsely(policy, device)
    critic = make_critic(config, policy, device) if estimator(config).critic else None
    if checkpoint and critic:
        trained = torch.load(checkpoint / "critic.pt", map_location="cpu", weights_only=True, mmap=True)
        critic.load_state_dict(trained, strict=False)
    reference = None
    if config.kl_coef:
        reference = policy
        if adapter_settings(config.model):
            keep_as_reference(policy, config.model)
        elif not config.lora_rank:
            reference = load_network(transformers.AutoModelForCausalLM, config.model, config, device, frozen=True)
    if config.gradient_checkpointing:
        for network in filter(None, (policy, critic and critic.backbone)):
            network.activation_checkpointing_enable({"use_reentrant": False})
    eos_ids, pad_id = end_and_pad_ids(config, policy, tokenizer)
    models = Models(policy, critic, reference, tokenizer, eos_ids, pad_id, device)
    settle_logits(config, models)
    check_pads(config, models, policy, "model")
    if critic and critic.backbone:
        check_pads(config, models, critic.backbone, "critic_model")
    share_prompts(config, models, models.networks)
    return models


def make_optimizer(config: Config, models: Models):
    rates = learning_rates(config, sum(p.numel() for p in models.policy.parameters()))
    return adamw(config, [pair for pair in zip((models.policy, models.critic), rates, strict=True) if pair[0]])


@dataclass
class Inputs:
    """What a run is given beside its settings."""

    tokenizer: object
    rows: list[dict]
    held_out: list[dict]
    reward: Reward
    environments: object = None  # with --environment
    setup: PlaySetup | None = None  # what conversations are played with, once the model's end tokens are known

    @property
    def sample(self) -> Callable:
        """What samples and scores: completions, or conversations with the environment."""
        return functools.partial(converse, self.setup) if self.setup else collect

    def prepare_play(self, config: Config, end_ids: list[int]) -> None:
        """With an environment, leave out prompts that no conversation can begin with."""
        if self.environments:
            self.setup = make_play_setup(config, self.tokenizer, end_ids, self.environments)
            self.rows = playable_rows(config, self.setup, self.rows, config.data)
            self.held_out = playable_rows(config, self.setup, self.held_out, "held-out prompts")


def load_reward(config: Config) -> Reward:
    """The configured reward functions, by default those of the embedded task with its data."""
    return Reward(specs_for(config.data, config.reward), call_limits(config))


def load_inputs(config: Config) -> Inputs:
    tokenizer = load_tokenizer(config)
    rows, held_out = load_splits(config, tokenizer)
    environments, reward = load_scored(config) if config.environment else (None, load_reward(config))
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns(row)
    if environments:
        check_chat_template(config, tokenizer)
        check_environment_rows(environments, rows + held_out)
    return Inputs(tokenizer, rows, held_out, reward, environments)


def validate(config: Config, processes: int) -> None:
    """Raise UserError for settings that cannot work; say which do nothing."""
    check_config(config, processes)
    check_idle(config, bool(config.environment), (*TURN_SETTINGS, "turn_baseline"))
    by_turn = [name for name, entry in ADVANTAGES.items() if getattr(entry, "by_turn", False)]
    got = f"got --turn_baseline turn with advantage {config.advantage}; expected one of {', '.join(by_turn)}"
    need(config.turn_baseline == "conversation" or estimator(config).by_turn, f"{got}; try --algorithm rloo")
    check_room(config, config.max_prompt_tokens)


def check_lengths(config: Config, inputs: Inputs, models: Models) -> None:
    """Raise UserError where the longest completion or conversation exceeds a model, or a token has no embedding."""
    rows = inputs.rows + inputs.held_out
    if inputs.environments:
        check_fits(config, getattr(unwrapped(models.policy).config.get_text_config(), "max_position_embeddings", None))
        check_tokens(models, rows)
    else:
        check_context(config, models, rows)


# ------------------------------------------------------------------------------- step (src/programs/ppo_train/step.py)

POLICY_STATISTICS = {  # what an update measures of the policy, and its reduction
    "policy/loss": "sum",
    "policy/clip_frac": "mean",
    "policy/entropy": "mean",
    "policy/ratio_max": "max",
    "kl/approx": "mean",
    "mismatch/weight_mean": "mean",
    "mismatch/kl": "mean",
    "mismatch/cut_frac": "mean",
}
KL_STATISTICS = {"kl/ref": "mean", "kl/ref_completion": "sum"}


def train_step(config: Config, models: Models, sampler: Sampler, optimizer, scaler, state: TrainState):
    """Do one step; returns its metrics, its samples, and the fields of the state after it."""
    timer = {}
    with room_for("while sampling", sampling_advice(config), before_update=True):
        samples, drawn = sampler.rollout(state.step, timer)  # processes share the prompts, each gets the whole batch
    begin = time.perf_counter()
    with room_for("in the update", update_advice(config)):
        batch = make_experience(config, models, samples, state.kl_coef)
        metrics = sample_metrics(config, batch, drawn, timer)
        stop_before_update()
        measured, bad = update(config, models, optimizer, scaler, batch, state.step, state.bad)
    metrics |= measured
    timer["update"] = time.perf_counter() - begin
    metrics |= {f"time/{phase}": seconds for phase, seconds in timer.items()}
    after = sampler.state() | {"bad": bad, "kl_coef": state.kl_coef}
    if models.reference:
        metrics["kl/coef"] = state.kl_coef
    if models.reference and config.kl_target:
        kl, count = metrics["kl/ref_completion"], config.batch_size
        after["kl_coef"] = next_kl_coef(state.kl_coef, kl, config.kl_target, config.kl_horizon, count)
    return metrics, samples, after


def make_experience(config: Config, models: Models, samples: list[dict], kl_coef: float) -> dict:
    """Turn samples into a training batch of [B, T] tensors: old and reference log-probs, values, advantages, returns.

    With a single optimizer step per batch the old policy is the current one, so `old_logprobs` is left to the update.
    """
    batch = collate(samples, models.pad_id, models.device)
    kept = [(s["finished"] or not config.mask_truncated) and not s.get("filler") and is_scored(s) for s in samples]
    batch["loss_mask"] = batch["response_mask"] * torch.tensor(kept, device=models.device)[:, None]
    names = [name for name, network in (("values", models.critic), ("ref_logprobs", models.reference)) if network]
    kl_first = models.reference and config.kl_in == "reward"  # else the update measures it on its way
    if config.ppo_epochs * config.minibatches > 1 or kl_first:
        names.append("old_logprobs")
    rows = list(range(len(samples)))
    advantages_need_networks = models.critic or models.reference
    if not advantages_need_networks:
        batch |= agreed_advantages(config, batch, samples, kl_coef)
        rows = contributing(config, batch)
    made = {name: torch.zeros(batch["input_ids"].shape, device=models.device) for name in names}
    for piece_rows, columns, piece in pieces_of_batch(config, models, batch, rows if made else []):
        for name, x in frozen_outputs(config, models, piece, made).items():
            made[name][piece_rows, columns] = x
    batch |= {name: sum_over_processes(x) for name, x in made.items()}
    if "old_logprobs" in made:
        others = [row for row in range(len(samples)) if row not in rows]  # not run: they show no gap to the sampler
        batch["old_logprobs"][others] = batch["rollout_logprobs"][others]
    return batch | agreed_advantages(config, batch, samples, kl_coef) if advantages_need_networks else batch


def frozen_outputs(config: Config, models: Models, piece: dict, names) -> dict:
    """Those of values, old_logprobs and ref_logprobs that are asked for, [B, T], without gradient."""
    critic, made = models.critic, {}
    with torch.no_grad(), autocast(config, models.device):
        hidden = None
        if "old_logprobs" in names or (critic and not critic.backbone):
            hidden = predicting_states(models.policy, piece)
        if "old_logprobs" in names:
            made["old_logprobs"] = token_logprobs(config, models.policy, hidden, piece)[0]
        if critic:
            hidden = predicting_states(critic.backbone, piece) if critic.backbone else hidden
            made["values"] = token_values(critic, hidden) * piece["response_mask"]
        if models.reference:
            with as_reference(models.policy):
                hidden = predicting_states(models.reference, piece)
                made["ref_logprobs"] = token_logprobs(config, models.reference, hidden, piece)[0]
    return made


def update(config: Config, models: Models, optimizer, scaler, batch: dict, step: int, bad: int = 0) -> tuple[dict, int]:
    """Train on the batch; returns metrics, and non-finite updates in a row, `bad` of them before this step."""
    train_policy = step >= config.critic_warmup_steps
    if LOSSES[config.loss].chooses_tokens:
        batch = batch | {"draw": draws(config, models, batch, step)}
    switch_checkpointing(models, config.gradient_checkpointing)

    def accumulate(rows) -> Statistics:
        return accumulate_gradients(config, models, batch, rows, scaler, train_policy)

    result = run_updates(config, optimizer, scaler, step, bad, accumulate, set(contributing(config, batch)))
    switch_checkpointing(models, False)
    return result


def accumulate_gradients(
    config: Config, models: Models, batch: dict, rows, scaler, train_policy: bool = True
) -> Statistics:
    """Add the gradients of the loss of one minibatch, micro-batch by micro-batch, and sum them over all processes.

    Every weight of a token is that of the whole minibatch, so neither micro-batches nor processes change the gradient.
    Rows that are not `contributing` count in the weights only.
    """
    whole = batch["loss_mask"][torch.as_tensor(rows, device=models.device)]
    tokens, sequences = whole.sum().clamp(min=1), len(rows)  # over all processes
    active = set(contributing(config, batch))
    rows = [int(row) for row in rows if int(row) in active]
    trained = batch["loss_mask"][torch.as_tensor(rows, dtype=torch.long, device=models.device)].sum().clamp(min=1)
    statistics = Statistics(declared(config, models, train_policy), models.device)
    if LOSSES[config.loss].chooses_tokens and train_policy:
        batch = batch | {"chosen": chosen_tokens(config, models, batch, rows)}
    networks = [network for network, on in ((models.policy, train_policy), (models.critic, models.critic)) if on]
    for _, _, piece in pieces_of_batch(config, models, batch, rows):
        mask, loss, hidden = piece["loss_mask"], 0.0, None
        with autocast(config, models.device), torch.set_grad_enabled(train_policy):  # warm-up keeps no graph
            if train_policy or not models.critic.backbone:
                hidden = predicting_states(models.policy, piece)
        if train_policy:
            loss = policy_share(config, models, piece, hidden, (tokens, sequences, trained, len(rows)), statistics)
            if not models.critic or models.critic.backbone:
                scaler.scale(loss).backward()  # frees this graph before the critic's is built
                loss = 0.0
        if models.critic:
            with autocast(config, models.device):
                if models.critic.backbone:
                    hidden = predicting_states(models.critic.backbone, piece)
            values = token_values(models.critic, hidden)
            error = (value_loss(values, piece["values"], piece["returns"], config.value_clip) * mask).sum() / tokens
            statistics.add({"value/loss": error.detach()})
            scaler.scale(loss + config.vf_coef * error).backward()
    sum_gradients(networks)
    return statistics


def draws(config: Config, models: Models, batch: dict, step: int):
    """A uniform number for each token of a step's batch, [B, T], by which tokens may be chosen."""
    numbers = np.random.default_rng([config.seed, 4, step]).random(batch["advantages"].shape)
    return torch.as_tensor(numbers).to(widest_float(models.device)).to(models.device)


def chosen_tokens(config: Config, models: Models, batch: dict, rows: list[int]):
    """`covariance_choice` of one minibatch, [B, T] over the batch; it needs all of its log-probs first."""
    logprobs, mask = torch.zeros_like(batch["advantages"]), torch.zeros_like(batch["loss_mask"])
    for piece_rows, columns, piece in pieces_of_batch(config, models, batch, rows):
        with torch.no_grad(), autocast(config, models.device):
            hidden = predicting_states(models.policy, piece)
            logprobs[piece_rows, columns] = token_logprobs(config, models.policy, hidden, piece)[0]
    sum_over_processes(logprobs)
    mask[rows] = batch["loss_mask"][rows]
    old, draw = batch.get("old_logprobs", logprobs), batch.get("draw", torch.zeros_like(logprobs))
    return of_first_process(covariance_choice(logprobs, old, batch["advantages"], mask, draw, config))


def declared(config: Config, models: Models, train_policy: bool) -> dict[str, str]:
    """The statistics of an update and their reductions; `kl/ref` where it was not measured before the update."""
    single = config.ppo_epochs * config.minibatches == 1
    measures_kl = train_policy and models.reference and config.kl_in == "loss" and single
    names = (POLICY_STATISTICS if train_policy else {}) | (KL_STATISTICS if measures_kl else {})
    return names | ({"value/loss": "sum"} if models.critic else {})


def policy_share(config: Config, models: Models, piece: dict, hidden, whole: tuple, statistics: Statistics):
    """A micro-batch's share of the policy's loss, with its graph, of the states [B, T, H] that predict each token.

    `whole` are tokens and sequences of the whole minibatch, and those of its contributing rows.
    """
    tokens, sequences, trained, contributing_rows = whole
    mask = piece["loss_mask"]
    weights = token_weights(mask, config, tokens, sequences)
    logprobs, entropy = token_logprobs(config, models.policy, hidden, piece, bool(config.entropy_coef))
    per_token, measured = policy_terms(config, piece, logprobs)
    statistics.add({"policy/loss": (per_token.detach() * weights).sum()})
    statistics.add({"policy/ratio_max": (measured.pop("policy/ratio_max") * mask).max()})
    kl = measured.pop("kl/ref", None)
    if "kl/ref" in statistics.values and kl is not None:
        measured["kl/ref"] = kl
        statistics.add({"kl/ref_completion": (kl * mask).sum() / contributing_rows})
    statistics.add_means(measured | {"policy/entropy": entropy.detach()}, mask, trained)
    return ((per_token - config.entropy_coef * entropy) * weights).sum()


# --------------------------------------------------------------------------------- run (src/programs/ppo_train/run.py)

POLICY_BUFFERS = 4  # float32 tensors [tokens, vocabulary] of a piece that exist at once, the gradient's among them


def memory_estimate(config: Config, model, prompt: int, processes: int) -> dict[str, float]:
    """Bytes per process, see `memory_of_trainer`; the critic is counted with the policy's size."""
    own_reference = config.kl_coef and not config.lora_rank
    reference = network_weights(model, 4 if config.precision == "fp32" else 2, 4) if own_reference else 0
    networks = 2 if estimator(config).critic and config.critic == "separate" else 1
    buffers = POLICY_BUFFERS + bool(config.entropy_coef)  # through which a gradient flows, too
    return memory_of_trainer(config, model, prompt, processes, buffers, {"reference": reference}, networks)


def sizes_of_run(config: Config, rows: list[dict], processes: int) -> Sizes:
    """What may be chosen by the memory that is free."""
    model, prompt = shaped_network(config, config.model), max(len(row["prompt_ids"]) for row in rows)
    return rollout_sizes(config, lambda changed: memory_estimate(changed, model, prompt, processes), prompt, processes)


def dry_run(config: Config) -> int:
    """Print batch arithmetic, a memory estimate per process, and the settings that are no defaults, as JSON."""
    size, device = int(os.environ.get("WORLD_SIZE", "1")), device_name(config)
    settle_model(config)
    validate(config, size)
    settle_precision(config, torch.device(device))
    inputs = load_inputs(config)
    model = shaped_network(config, config.model)
    parameters = sum(p.numel() for p in model.parameters())
    inputs.prepare_play(config, end_and_pad_ids(config, model, inputs.tokenizer)[0])
    rows, completions = inputs.rows, config.steps * config.batch_size
    batch = batch_plan(config, inputs.tokenizer, rows, inputs.held_out) | {
        "steps": config.steps,
        "completions_per_step": config.batch_size,
        "prompts_per_step": config.batch_size // config.group_size,
        "completions": completions,
        "passes_over_the_data": round(completions / config.group_size / len(rows), 2),
        "completions_per_optimizer_step": config.batch_size // config.minibatches,
        "optimizer_steps": config.steps * config.ppo_epochs * config.minibatches,
    }
    plan = {"batch": batch, "parameters": parameters} | environment_plan(config, inputs.setup)
    lr, critic_lr = learning_rates(config, parameters)
    show_plan(config, device, sizes_of_run(config, rows, size), plan, lr=lr, critic_lr=critic_lr)
    return 0


def train(config: Config) -> int:
    started = time.perf_counter()
    settle_model(config)
    device = start_processes(config)
    validate(config, world()[1])
    settle_precision(config, device)
    seed_generators(config)
    inputs = load_inputs(config)
    checkpoint = find_checkpoint(config)
    settle_or_refuse(config, str(device), sizes_of_run(config, inputs.rows, world()[1]))
    with room_for(*LOADING):
        models = load_models(config, device, checkpoint, inputs.tokenizer)
        inputs.prepare_play(config, models.eos_ids)
        check_lengths(config, inputs, models)
        optimizer, scaler = make_optimizer(config, models), grad_scaler(config, device)
        state = restore(config, models, optimizer, scaler, checkpoint)
        engine = {"hf": HFEngine, "vllm": VllmEngine}[config.rollout_engine](config, models)
    sampler = Sampler(config, models, engine, inputs.reward, inputs.rows, state, inputs.sample)

    def evaluate_held_out(step: int) -> tuple[dict, list[dict]]:
        engine.sync(step)
        return evaluate(config, models, engine, inputs.reward, inputs.held_out, inputs.sample)

    step = functools.partial(train_step, config, models, sampler, optimizer, scaler)
    progress = begin_run(config, models, optimizer, scaler, state, started)
    return progress.run(step, evaluate_held_out if inputs.held_out else None, (RewardError, EnvironmentFault))


def run(argv: list[str]) -> int:
    config = parse_config(argv)
    quiet_environment(config.rollout_engine == "vllm")
    return dry_run(config) if config.dry_run else train(config)


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
