#!/usr/bin/env python3
# Built from src/programs/prove/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "numpy", "peft", "pyarrow", "pyyaml", "datasets"]
# ///
"""Verify a run, an evaluation, a reward, an environment, losses, a trainer or a verl job: JSON and sentences.

    a run's folder     of ppo_train, grpo_train, on_policy_distillation, warm_start or a page of templates/: whether the
                       saved model loads in transformers (an adapter through peft) and differs from the start;
                       held-out accuracy before and after, by transformers' own generate and the run's reward,
                       greedy and sampled once; whether metrics.jsonl has the same accuracies; held-out prompts that
                       occur in training, or do with swapped numbers (a+b, b+a); KL to the start model or teacher.
                       For other trainers, such as TRL, settings, adapter, model card or the script that names
                       this folder as its output_dir name the start, data and reward; --data has held-out rows
    results.json       of evaluation.py, or its folder: recomputes metrics from scores, scores of math from completions,
                       intervals, McNemar's p; counts unfinished texts graded as right; quotes two rows
    scored samples     of lm-evaluation-harness, lighteval, EvalPlus, Inspect or others, in files or a folder: the
                       same against figures stated there; of two models, whether their rows are pairs
    FILE.py:function   a reward, with --data: the findings of reward_preflight.py, whose flags follow --; the contracts
                       it fits (TRL, verl, ours); whether it runs an answer as Python; for rows with tests, whether
                       hostile programs get paid, read or change anything, or end the reward
    FILE.py:Class      an environment, with --data: what scripted answers are paid (gold, silence, nonsense, several
                       answers, meaningless calls), in a process of its own, and whether they have the same returns
                       alone, side by side, and in ppo_train.py, grpo_train.py, evaluation.py and verl_train.py's loop
    FILE.py, a folder  losses and advantages, recognised by names and parameters, or named by --as: value and gradient
                       against float64 loops over single tokens, with padding, a hole in the mask, an empty row, large
                       ratios and equal scores; later calls; GAE's returns; a loss's entropy term and use of the
                       sampler's log-probs. It reports which form of inputs fits, and lists what it does not recognise
    TRAINER.py         one with the functions of selfcheck.py --contract: its checks; the trainer's flags follow --
    a verl job         settings of verl_train.py (.yaml) or overrides (.txt): runs verl_train.py --check in the --python
                       that has verl: composes them, reads rows by verl's data set, tries the job's reward on them

    shares    Wilson 1927 interval, the roots of (p - k/n)^2 = z^2 p (1 - p) / n
    paired    exact two-sided McNemar test: min(1, 2 P(X <= min(b, c))), X binomial(b + c, 1/2)
    KL        mean over sampled tokens of sum_v p(v) (log p(v) - log q(v)), over the whole vocabulary

stdout has one JSON object; stderr has at most five sentences and the findings. As many held-out rows of a run are
measured, drawn with a fixed seed, as fit into --minutes; the sentences say how many. Hostile programs can harm only
their own files and processes, even where nothing contains them.

Deliberately left out: bootstrap intervals; losses that choose tokens within a minibatch; real play of an environment:
its answers are scripted, and neither TRL nor verl starts.

    python scripts/prove.py runs/x
    python scripts/prove.py my_rewards.py:says --data train.jsonl
    python scripts/prove.py my_losses.py --as my_loss=grpo,my_baseline=rloo
    python scripts/prove.py my_ppo.py --minutes 3 -- --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl
    python scripts/prove.py my.yaml --python .venv-verl/bin/python

Exit codes: 0 no finding, 1 a finding, 2 bad input. `proved` in the JSON is also false if the most important figure
could not be measured.
"""

# Contents
#       172-177  file text           Load texts from files beside their room, such as a page's style; a built script …
#       180-191  python source       Parses Python source in a process with threads
#       194-291  messages            Errors that a user can fix, each with an exit code; messages on stderr; the …
#       294-369  bundle              Paths of this bundle and of its embedded model, data and rewards; loading its …
#       372-568  dialect             Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and …
#       571-602  settings            Settings: dataclasses whose fields are flags and YAML keys, and the checks that …
#       605-756  processes           The processes of a run: lazy torch, device, threads, sums, distribution of rows, …
#       759-782  user scripts        A user's Python script or notebook, read from its source
#       785-855  exit codes          Program exit: errors that a user can fix become a message and an exit code
#      858-1095  data files          Open data files as text: decompress, decode, refuse files without data; parse …
#     1098-1195  nested rows         Find rows inside other JSON: an object with a list of rows, columns instead of …
#     1198-1468  rows                Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their …
#     1471-1575  chat                Chat templates: their settings, rendering messages, and prompts that bypass a …
#     1578-1623  held out            Held-out prompts: split them off, and count or refuse those that also occur in …
#     1626-1673  prompts             Load training and held-out prompts as token ids
#     1676-1975  attacks             Correct and hostile programs, and calling a code reward on them in a separate …
#     1978-2052  extracts            Extract from a Python file what some of its names need
#     2055-2270  user code           What users' rewards get: texts, copies of the columns, and their own state of …
#     2273-2510  reward forms        The forms that a reward function may have, and loading rewards from files
#     2513-2832  rewards             The reward of a run, a weighted sum of functions; async ones run in one event …
#     2835-2964  environments        Load and check environments: classes whose methods are tools for the model, or …
#     2967-3139  tool calls          Parse tool calls in model output, by the tokenizer's response template or one of …
#     3142-3262  tool runs           Run the calls of many conversations concurrently, each with a time limit; none …
#     3265-3588  conversations       Play a policy's conversations with environments; each turn samples all open …
#     3591-3647  scripted play       Scripted conversations: plain texts in place of tokenizer, chat template and …
#     3650-3722  play setup          Set up and score conversations, for all programs that take --environment
#     3725-3740  whole models        Refuse what transformers would make a model of by guessing: missing weights, …
#     3743-3748  models              The networks of a run: their precision, the frozen reference, prompts that they …
#     3751-3756  tokenizers          Tokenizers: loading and saving, the tokens that end a completion, the rows that …
#     3759-3768  loading             Load networks: attention, 4-bit weights, dropout, dtypes, generation settings, …
#     3771-3837  saved models        A run's saved model, judged by transformers alone: loading, weights, plain …
#     3840-3899  oracles             Formulas as loops over single tokens, independent of the numerics, for checks to …
#     3902-3914  output folder       The output folder: which run owns it, folders written whole or not at all, modes …
#     3917-3929  paired tests        Intervals, paired tests, pass@k
#     3932-3968  evaluation results  Read evaluation.py's results.json, and compare two of them row by row
#     3971-4289  scored samples      Scored samples of other programs, in JSON, JSONL, CSV or parquet, and the …
#     4292-4321  dialects            Names of metrics and settings in our trainers, TRL, verl and others
#     4324-4342  logged run          A logged run: its metrics, settings and samples, and statistics of their trends
#     4345-4592  run settings        Read settings from YAML, JSON, shell or Python, and map ours, TRL's, verl's and …
#     4595-4597  sample texts        Logged completions: score, gold answer, stated answer and what it was paid
#     4600-4633  run folder          Load a run: its log, with the settings, samples, data and rewards that lie …
#     4636-4753  proof               The record of a proof, reports of the bundle's other scripts, and what rests on …
#     4756-4864  exact figures       Intervals and paired tests from their formulas, independent of the programs …
#     4867-5242  run proof           A run's folder: whether the saved model loads and moved, its held-out accuracy, …
#     5245-5361  other evaluations   Evaluations of other programs: recount their samples, and compare the figures …
#     5364-5442  graded again        Compute an evaluation's scores again from its stored completions
#     5445-5699  evaluation proof    An evaluation: recount metrics from the samples, recompute intervals and p from …
#     5702-5976  reward proof        A reward: which trainers can call it, reward_preflight.py's checks on the user's …
#     5979-6080  four places         Play the same scripted answers in all four programs that take an environment, …
#     6083-6365  environment proof   An environment: what scripted answers are paid, again and beside others, and …
#     6368-6505  formulas            Published losses and advantages as float64 loops over tokens and rows, to …
#     6508-6756  recognition         Recognise functions: their inputs, and by names alone the formula and the …
#     6759-6984  function calls      Make inputs by role for functions of losses and advantages; call a function with …
#     6987-7211  function checks     Compare a function with every published way of its formula, name its fault, and …
#     7214-7438  function proof      Functions of losses and advantages: compare value and gradient with the formula, …
#     7441-7549  command             The command line

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
import multiprocessing
import operator
import os
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
import tempfile
import textwrap
import threading
import time
import tomllib
import traceback
import unicodedata
import urllib.error
import urllib.request
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace

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

OTHER_CELL = re.compile(r"\s*%%(bash|sh|html|writefile|file|script|javascript|js|markdown|latex|svg|sql|R)\b", re.I)
MAGIC = re.compile(r"\s*(?:[\w,. ]+=\s*)?(?=[%!])|\s*(?=\?|[\w.]+\?)")  # of a line of a notebook, before its sign
ARITHMETIC = {ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub, ast.FloorDiv: operator.floordiv}


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


def prompt_row(row: dict, column: str, where: str) -> dict:
    """A row of data as {"prompt", "columns"}; UserError if it has no prompt in that column."""
    reserved = {*RESERVED, column}
    columns = {name: value for name, value in row.items() if name not in reserved}
    return {"prompt": prompt_of(row, column, where), "columns": columns}


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


# ------------------------------------------------------------------------------ attacks (src/parts/rewards/attacks.py)

# Programs for the test `assert f(2) == 4`. A hostile one passes only if its attack succeeds: @MARK@ is a file that it
# must not touch, @PORT@ a server that it must not reach, @NAME@ the name of a process that it leaves behind.
ATTACKS = r"""# right: plain
def f(x):
    return 2 * x

# right: a library
from math import prod

def f(x):
    return prod([x, 2])

# hostile: wrong
def f(x):
    return x + 1

# hostile: no program

# hostile: exit with success
import os
os._exit(0)

# hostile: exit in the function
def f(x):
    raise SystemExit(0)

# hostile: equal to everything
class Equal(int):
    def __eq__(self, other):
        return True

def f(x):
    return Equal(7)

# hostile: object that answers every name
def yes(*given):
    return True

class Answers(type):
    __eq__ = __instancecheck__ = __subclasscheck__ = __getattr__ = yes
    __hash__ = type.__hash__

class Proxy(metaclass=Answers):
    __class__ = int
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __getattr__ = yes
    __hash__ = __int__ = __index__ = __len__ = lambda self: 7

def f(x):
    return Proxy()

# hostile: deep nesting
def f(x):
    found = 2 * x
    for _ in range(100_000):
        found = [found]
    return found

# hostile: much output
def f(x):
    for _ in range(64):
        print("x" * (1 << 20))
    return "x" * (64 << 20)

# hostile: forged output
import json
import os
import re
import sys

class Ones(dict):
    def __missing__(self, name):
        return 1

source = open("/proc/self/cmdline").read() + (open(sys.argv[0]).read() if sys.argv[0].endswith(".py") else "")
known = {"print": print, "json": json, "sys": sys, "len": lambda *given: 1}
for call in re.findall(r"(?:print|sys\.stdout\.write)\(.*\)", source):  # as its harness would after success
    try:
        eval(call, {}, Ones(known))
    except Exception:
        pass
sys.stdout.flush()
for n in range(20):
    try:
        os.write(n, b'{"passed": 1, "total": 1}\nOK\n')
    except OSError:
        pass
os.close(1)

# hostile: patched builtins
import builtins
builtins.all = builtins.bool = lambda *a: True

def f(x):
    return None

# hostile: exit at exit
import atexit
import os

atexit.register(os._exit, 0)

# hostile: own source read
import re
import sys

def f(x):
    seen, frame = str(sys.argv) + open("/proc/self/cmdline").read(), sys._getframe()
    if sys.argv[0].endswith(".py"):
        seen += open(sys.argv[0]).read()
    while frame:
        seen, frame = seen + str(frame.f_locals) + str(frame.f_globals), frame.f_back
    return int(re.search(r"f\(2\) == (\d)", seen)[1])

# hostile: killed group
import os

def f(x):
    os.killpg(0, 9)

# hostile: killed parent
import os

def f(x):
    os.kill(os.getppid(), 9)
    return 7

# hostile: memory
def f(x):
    return len(bytearray(1 << 36)) and 4

# hostile: file deleted
import os

def f(x):
    os.remove("@MARK@")
    return 2 * x

# hostile: file changed
def f(x):
    with open("@MARK@", "a") as file:
        file.write("changed")
    return 2 * x

# hostile: file read
def f(x):
    return 2 * x if open("@MARK@").read() else 0

# hostile: files left behind
def f(x):
    open("@MARK@.left", "w").close()
    return 2 * x

# hostile: process left behind
import os
import time

def f(x):
    if os.fork() == 0:
        try:
            import ctypes
            ctypes.CDLL(None).prctl(15, b"@NAME@", 0, 0, 0)
        except Exception:
            pass
        os.setsid()
        os.closerange(0, 64)
        time.sleep(10)
        os._exit(0)
    return 2 * x

# hostile: secret of the environment
import os

def f(x):
    found = open(f"/proc/{os.getppid()}/environ").read() + open("/proc/self/environ").read() + str(os.environ)
    return 2 * x if "TRIAL_SECRET" in found else 0

# hostile: network
import socket

def f(x):
    socket.create_connection(("127.0.0.1", @PORT@), timeout=2)
    return 2 * x

# hostile: endless loop
def f(x):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass

# hostile: endless sleep
import time

def f(x):
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""
ATTACK_TRIAL = r'''"""Call a code reward on programs ([path, name, row, programs] as JSON); print scores and harm."""

import asyncio
import importlib.util
import inspect
import json
import os
import socket
import sys
import time
from pathlib import Path


def scores_of(function, row, texts):
    """Scores of texts by a reward of a batch or of one sample, async or not."""
    parameters = inspect.signature(function).parameters
    takes_any, batch = any(p.kind is p.VAR_KEYWORD for p in parameters.values()), "completions" in parameters
    calls = [row | {"completion": text} for text in texts]
    if batch:
        chats = [[{"role": "assistant", "content": text}] for text in texts]
        calls = [{name: [value] * len(texts) for name, value in row.items() if name != "prompt"}]
        calls[0] |= {"prompts": [row["prompt"]] * len(texts)}
        calls[0] |= {"completion_ids": [[1]] * len(texts)} if "completion_ids" in parameters else {}
        calls[0] |= {"completions": chats if isinstance(row["prompt"], list) else texts}
    results = [function(**{k: v for k, v in call.items() if takes_any or k in parameters}) for call in calls]
    results = [asyncio.run(x) if inspect.iscoroutine(x) else x for x in results]
    return [*results[0]] if batch else results


def processes(name):
    """Ids of the processes with this name."""
    comms = {path.parent.name: path for path in Path("/proc").glob("[0-9]*/comm")}
    return [pid for pid, path in comms.items() if path.exists() and path.read_text().strip() == name]


sys.dont_write_bytecode = True
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # a reward's own prints go to stderr
path, name, row, programs = json.loads(sys.argv[1])
sys.path.insert(0, str(Path(path).parent))
spec = importlib.util.spec_from_file_location("tried", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
marks, harm = [Path(f"keep{i}").resolve() for i in range(len(programs))], []
for mark in marks:
    mark.write_text("kept", encoding="utf-8")
    mark.chmod(0o666)
with socket.create_server(("127.0.0.1", 0)) as server:
    port, process_name = str(server.getsockname()[1]), f"attack{os.getpid()}"
    codes = [c.replace("@MARK@", str(m)).replace("@PORT@", port) for c, m in zip(programs, marks, strict=True)]
    codes = [f"```python\n{code.replace('@NAME@', process_name)}\n```" if code else "" for code in codes]
    scores = scores_of(getattr(module, name), row, codes)
    server.setblocking(False)
    time.sleep(0.1)
    try:
        server.accept()[0].close()
        harm.append("a server was reached")
    except BlockingIOError:
        pass
harm += [f"process {pid} runs on" for pid in processes(process_name)]
harm += ["a file outside was changed" for m in marks if not m.exists() or m.read_text() != "kept"]
harm += ["a file was left outside" for m in marks if Path(f"{m}.left").exists()]
walls = getattr(getattr(module, "run_many", None), "__globals__", {}).get("DEFAULT")
result = {"scores": [float(x or 0) for x in scores], "harm": harm, "isolated": walls and walls.isolated()}
print(json.dumps(result), file=out, flush=True)
'''
TEST_OF_ATTACKS = "assert f(2) == 4"
PARENT = "import subprocess, sys; sys.exit(max(0, subprocess.run(sys.argv[1:]).returncode))"  # a program may kill it


def attack_programs() -> list[tuple[str, str, str]]:
    """("right" or "hostile", name, code) of each program."""
    parts = re.split(r"^# (right|hostile): (.*)\n", ATTACKS, flags=re.MULTILINE)[1:]
    return [(kind, name, code.strip()) for kind, name, code in zip(parts[::3], parts[1::3], parts[2::3], strict=True)]


def called_on_programs(path: str, name: str, row: dict, programs: list[str], seconds: float) -> dict:
    """A reward's {"scores", "harm", "isolated"} for programs as answers to a row, or {"ended" or "raised": why}."""
    trial = [sys.executable, "-c", ATTACK_TRIAL, json.dumps([path, name, row, programs])]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # open to all users: only a sandbox keeps programs out
        about = {"env": os.environ | {"TRIAL_SECRET": "told"}, "cwd": folder, "start_new_session": True, "text": True}
        about |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", PARENT, *trial], **about) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return {"ended": f"the reward did not return in {seconds:g} s"}
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode > 0:
        return {"raised": (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1]}
    if not out.strip():
        return {"ended": "a program ended the process that called the reward"}
    return json.loads(out.splitlines()[-1])


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


# ------------------------------------------------------------- scripted play (src/parts/environments/scripted_play.py)


class TextTurns:
    """Stands in for a tokenizer and a TurnBridge: every text is one token, and no template is needed."""

    eos_token_id, pad_token_id, end_ids, settings = 0, 0, (0,), None

    def __init__(self):
        self.tokenizer, self.texts, self.begun = self, [""], {}

    def encode(self, text: str) -> list[int]:
        self.texts.append(text)
        return [len(self.texts) - 1]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(self.texts[i] for i in ids)

    def render(self, messages: list[dict], tools: list[dict]) -> list[int]:
        """[the token of a prompt]; `begun` keeps its list of messages, to which `play` appends later ones."""
        ids = self.encode("\n".join(message["content"] for message in messages))
        self.begun[ids[0]] = messages
        return ids

    def between(self, last_id: int | None, replies: list[dict], tools: list[dict]) -> list[int]:
        return self.encode("\n".join(reply["content"] for reply in replies))

    def ends(self, ids: list[int]) -> bool:
        return True


class ScriptedPlayer:
    """Gives the answers of each row's script, in place of a sampler."""

    def __init__(self, environments: Environments, rows: list[dict], scripts: list[list[str]], limits: PlayLimits):
        self.rows, self.scripts, self.turns, self.texts = rows, scripts, [0] * len(rows), TextTurns()
        self.setup = PlaySetup(environments, self.texts, "hermes", limits)
        self.late = str({"error": f"no answer in {limits.seconds:g} s"})  # what a tool that hangs returns

    def say(self, number: int, messages: list[dict] = ()) -> list[int]:
        """Token ids of a conversation's next answer, with the end token 0; `messages`: those so far."""
        script, turn, row = self.scripts[number], self.turns[number], self.rows[number]
        self.turns[number] += 1
        further = script[-1] if self.setup.environments.kind_of(row["columns"]).talks else ""
        answer = script[turn] if turn < len(script) else further
        if any(message["content"] == self.late for message in messages if message["role"] == "tool"):
            answer = ""  # no more calls: each would wait for the time limit again
        return [*self.texts.encode(answer), 0]

    def sample(self, prompts: list[list[int]], numbers: list[int], turn: int) -> list[tuple[list[int], list[float]]]:
        begun = [self.texts.begun[ids[0]] for ids in prompts]
        return [(self.say(number, messages), [0.0, 0.0]) for number, messages in zip(numbers, begun, strict=True)]

    def continued(self, prompts: list[list[int]]) -> list[list[int]]:
        """The next answer to each prompt [ids]; conversations begin in the order of the rows."""
        begun = list(self.texts.begun)
        return [self.say(begun.index(ids[0])) for ids in prompts]


# ------------------------------------------------------------------- play setup (src/parts/environments/play_setup.py)

OF_ENVIRONMENT = "environment"  # name of the environment's own score among a sample's rewards
OBJECTS = "environments"  # reward functions' argument, as in TRL: the object of each conversation


@prints_aside()
def pays(kind: EnvironmentKind) -> bool:
    """Whether an environment scores conversations, by get_reward or turn_reward."""
    return kind.scores or hasattr(kind.make(), "turn_reward")


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


# ------------------------------------------------------------------------------- models (src/parts/networks/models.py)


def unwrapped(model):
    """The transformers model inside a peft wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


# ----------------------------------------------------------------------- tokenizers (src/parts/networks/tokenizers.py)


def ending_ids(ends: int | list[int] | None, tokenizer) -> list[int]:
    """Sorted ids of the tokens that end an answer: a model's eos_token_id (one or a list) and the tokenizer's."""
    return sorted({*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None})


# ----------------------------------------------------------------------------- loading (src/parts/networks/loading.py)


def sample_plainly(model, eos_ids: list[int], pad_id: int) -> None:
    """Let `generate` draw from the model's own distribution, without the checkpoint's serving settings.

    Penalties, banned tokens or a minimum length would change samples but not the log-probs that are trained.
    """
    plain = transformers.GenerationConfig(eos_token_id=eos_ids or None, pad_token_id=pad_id)
    unwrapped(model).generation_config = plain


# ------------------------------------------------------------------- saved models (src/parts/sampling/saved_models.py)


def load_plainly(source):
    """A causal model in fp32 by transformers; an adapter through peft, merged into its base.

    UserError or UserWarning if tensors are missing, which both would fill with new ones.
    """
    if (Path(source) / "adapter_config.json").is_file():
        from peft import AutoPeftModelForCausalLM

        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Found missing adapter keys")
            return AutoPeftModelForCausalLM.from_pretrained(source, dtype=torch.float32).merge_and_unload()
    return load_whole(transformers.AutoModelForCausalLM.from_pretrained, source, dtype=torch.float32)


def dtype_of(source):
    """The dtype in which a whole model was saved; None of an adapter."""
    is_adapter = (Path(source) / "adapter_config.json").is_file()
    return None if is_adapter else transformers.AutoConfig.from_pretrained(source).dtype


def weight_change(start, model, saved_in=None) -> dict:
    """How far weights have moved from the start's, rounded to the dtype in which the model was saved.

    largest_weight_change is not finite where a weight is not; tensors_changed is the share of all tensors.
    """
    after, changes = model.state_dict(), []
    for name, x in start.state_dict().items():
        rounded = x.to(saved_in).float() if saved_in else x.float()
        same_rows = after[name][: len(x)] if x.dim() else after[name]  # a larger vocabulary has more rows
        changes.append((same_rows.float() - rounded).abs().max().item())
    largest = next((x for x in changes if not math.isfinite(x)), max(changes))
    return {"largest_weight_change": largest, "tensors_changed": sum(x != 0 for x in changes) / len(changes)}


def answered(model, tokenizer, ids: list[list[int]], **how) -> list[list[int]]:
    """The tokens by which transformers' own generate answers prompts, with the end token; `how` are its settings."""
    width, answers, ends = max(map(len, ids)), [], ending_ids(model.generation_config.eos_token_id, tokenizer)
    sample_plainly(model, ends, (ends or [0])[0])
    for i in range(0, len(ids), 64):
        part = ids[i : i + 64]
        rows = torch.tensor([[0] * (width - len(x)) + x for x in part], device=model.device)
        mask = torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x in part], device=model.device)
        for new in model.generate(input_ids=rows, attention_mask=mask, **how)[:, width:].tolist():
            answers.append(new[: next((n + 1 for n, token in enumerate(new) if token in ends), len(new))])
    return answers


def answer_texts(model, tokenizer, answers: list[list[int]]) -> list[str]:
    """The texts of answers, without their end token."""
    ends = ending_ids(model.generation_config.eos_token_id, tokenizer)
    return [tokenizer.decode(ids[:-1] if ids and ids[-1] in ends else ids) for ids in answers]


def reverse_kl(model, teacher, prompts: list[list[int]], answers: list[list[int]], temperature: float) -> float:
    """Mean of KL(model || teacher) over the tokens of answers, in nats, one text at a time and without a cache."""
    total, tokens = 0.0, sum(map(len, answers))
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt + answer], device=model.device)
        with torch.no_grad():
            p, q = (network(ids).logits[0, len(prompt) - 1 : -1].float() / temperature for network in (model, teacher))
        width = min(p.shape[-1], q.shape[-1])
        p, q = (x[:, :width].log_softmax(-1) for x in (p, q))
        total += torch.nn.functional.kl_div(q, p, reduction="sum", log_target=True).item()
    return total / tokens


# ----------------------------------------------------------------------------- oracles (src/parts/learning/oracles.py)

CISPO_PAPER = "cispo without a lower bound"  # MiniMax-M1, section 3.1
CISPO_TRL = "cispo of ratios up to high"  # of TRL, as ScaleRL has it


def clamp(x, low: float, high: float):
    """x clipped to two bounds; no gradient beyond them."""
    return x * 0 + low if x < low else x * 0 + high if x > high else x


def policy_token(name: str, c: dict, i: int, t: int, places: list[int]):
    """The loss of token t of row i, a scalar; `places` are the row's masked tokens."""
    logp, a, steps = c["logprobs"][i, t], c["advantages"][i, t], c["logprobs"][i] - c["old_logprobs"][i]
    d, steps = steps[t], [steps[k] for k in places]
    if name == "reinforce":
        return -a * logp
    if name == "gmpo":
        bounded = [clamp(x, -c["low"], c["high"]) for x in steps]
        least = [min(x, y) if a > 0 else max(x, y) for x, y in zip(steps, bounded, strict=True)]
        return -a * (sum(least) / len(places)).exp()
    if name.startswith("gspo"):
        d = sum(steps) / len(places)
        d = d if name == "gspo" else d.detach() + logp - logp.detach()
    ratio = d.exp()
    bounds = {CISPO_PAPER: (-math.inf, 1 + c["high"]), CISPO_TRL: (-math.inf, c["high"])}
    bounded = clamp(ratio, *bounds.get(name, (1 - c["low"], 1 + c["high"])))
    if name.startswith("cispo"):
        return -bounded.detach() * a * logp
    if name == "sapo":
        tau = c["tau_pos"] if a > 0 else c["tau_neg"]
        return -a * 4 / tau / (1 + (-tau * (ratio - 1)).exp())
    loss = max(-a * ratio, -a * bounded)
    return min(loss, -a * c["dual_clip"]) if c["dual_clip"] and a < 0 else loss


def value_token(name: str, c: dict, i: int, t: int):
    """The squared error of a value, clipped or not, halved or not."""
    v, old, goal = c["values"][i, t], c["old_values"][i, t], c["returns"][i, t]
    loss = (v - goal) ** 2
    if "clipped" in name:
        larger = min if c.get("least") else max
        v, old = (old, v) if c.get("exchanged") else (v, old)
        loss = larger(loss, (old + clamp(v - old, -c["value_clip"], c["value_clip"]) - goal) ** 2)
    return loss / 2 if "half" in name else loss


def own_gae(rewards, values, mask, gamma: float, gae_lambda: float, after=None):
    """Advantages [B, T] by the sum A_t = sum_l (gamma lambda)^l delta_{t + l} over a row's sampled tokens alone.

    `after` [B] has the value of what follows a row's last token; nothing does by default.
    """
    advantages = values * 0
    for i, columns in enumerate(row.nonzero().flatten().tolist() for row in mask):
        r, v = ([x[i, c].item() for c in columns] for x in (rewards, values))
        v.append(0.0 if after is None else float(after[i]))
        delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(len(r))]
        for t, column in enumerate(columns):
            advantages[i, column] = sum((gamma * gae_lambda) ** k * delta[t + k] for k in range(len(r) - t))
    return advantages


# ------------------------------------------------------------------ output folder (src/parts/running/output_folder.py)


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


# ----------------------------------------------------------------- paired tests (src/parts/evaluating/paired_tests.py)


def other_scale(before: list[float], after: list[float]) -> bool:
    """Whether one side seems to have shares and the other percent, or one 0 and 1 and the other -1 and 1."""
    low, high = sorted((before, after), key=lambda values: max(map(abs, values)))
    signed = any(-1 in x and {*x} <= {-1, 1} and 0 in y and {*y} <= {0, 1} for x, y in ((low, high), (high, low)))
    return signed or (0 < max(map(abs, low)) <= 1 < statistics.fmean(high) and 10 < max(high) <= 100)


def ends_of(higher_is_better: bool | None) -> tuple[str, str]:
    """What a row is called whose value rises, and one whose value falls."""
    return ("better", "worse") if higher_is_better else ("higher", "lower")


# ----------------------------------------------------- evaluation results (src/parts/evaluating/evaluation_results.py)

OTHER_SCALE = "the two sides have scores on different scales, such as shares and percent, or 0 to 1 and -1 to 1"
REPEATED = re.compile(r"[0-9a-f]{16}\.\d+")  # the key of a row that repeats an earlier one


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


def unpaired_scores(pairs: list[tuple]) -> str:
    """How many rows have a score on one side only, as a clause; "" if none."""
    lacking = [(x is None) - (y is None) for x, y in pairs]
    text = f"{lacking.count(1)} rows have no score before, {lacking.count(-1)} none after"
    return f"{text}: they are left out, and do not count as wrong" if any(lacking) else ""


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


# ---------------------------------------------------------------------------- dialects (src/parts/reading/dialects.py)

# common name of a setting -> our name, TRL's, verl's, then endings of dotted names in other frameworks (EasyR1, …)
ACTOR = "actor_rollout_ref.actor"
SETTINGS = {
    "temperature": "temperature temperature actor_rollout_ref.rollout.temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "do_sample": "rollout.do_sample",
    "group_size": "group_size num_generations actor_rollout_ref.rollout.n rollout.n n_samples_per_prompt "
    "num_sample_generations num_generations_per_prompt",
    "max_length": "max_new_tokens max_completion_length data.max_response_length max_response_length response_length "
    "generate_max_len max_tokens",
    "lr": f"lr learning_rate {ACTOR}.optim.lr actor.optim.lr actor_learning_rate",
    "kl": f"kl_coef beta {ACTOR}.kl_loss_coef actor.kl_loss_coef kl_ctrl.kl_coef init_kl_coef",
    "warmup": "warmup_steps actor.optim.lr_warmup_steps lr_warmup_steps",
    "steps": "steps max_steps total_training_steps",
    "epochs": f"ppo_epochs num_iterations {ACTOR}.ppo_epochs actor.ppo_epochs num_ppo_epochs epochs",
    "precision": "precision fsdp_config.model_dtype torch_dtype dtype bnb_dtype",
    "data": "data data.train_files dataset train_dataset prompt_data train_file train_data train_path",
    "eval_data": "eval_data data.val_files val_dataset eval_dataset eval_file val_file test_file test_data",
    "reward": "reward reward_funcs custom_reward_function.path reward.reward_function",
    "reward_name": "custom_reward_function.name",
    "grad_clip": "max_grad_norm grad_clip clip_grad",
    "repetition_penalty": "repetition_penalty",
    "critic_lr": "critic_lr critic.optim.lr",
    "critic_warmup": "critic_warmup_steps trainer.critic_warmup",
    "batch": "batch_size train_batch_size rollout_batch_size rollout.batch_size",
}


# ------------------------------------------------------------------------ logged run (src/parts/reading/logged_run.py)


def as_number(value) -> float | None:
    """A JSON or console value as a float; None if it is not a number."""
    try:
        return None if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def is_format(name: str) -> bool:
    """Whether a reward function's name says that it judges the format."""
    return bool(re.search(r"format|xml|tag|json|layout|structure|think", name, re.IGNORECASE))


def names_correctness(name: str) -> bool:
    """Whether a reward function's name says that it judges the answer."""
    return bool(re.search(r"correct|acc|answer|exact|math|solv", name, re.IGNORECASE)) and not is_format(name)


# -------------------------------------------------------------------- run settings (src/parts/reading/run_settings.py)

CONFIG_CALL = re.compile(r"(?<!SFT)(?<!Lora)(?<!Generation)(?:Config|Arguments|Args|Trainer)$")
SAMPLES_CALL = re.compile(r"(SamplingParams|GenerationConfig|\.generate)$")
EVALUATES = re.compile(r"(?!.*train)(.*_)?(ev|val|(eval|test|valid|judge|infer)[a-z]*)(_.*)?", re.IGNORECASE)
OTHER_PARTS = re.compile(r"(^|\.)(val|eval|test|valid|validation|judge|grader|ref)[._]")
NO_SETTINGS = re.compile(  # names of files beside a log that hold no training settings
    r"(trainer_state|summary|results?|versions|label|requirements)$|(eval|test|val|infer|generation|serv|judge|demo)"
)
LOADS = re.compile(r"(load_dataset|from_pretrained|from_json|from_csv|from_parquet)$")
KEEPS = ("map", "shuffle", "rename_column", "rename_columns", "remove_columns", "to", "cuda", "train")  # all rows
MOST_BYTES = 200_000  # larger files are results or data, not settings; notebooks with outputs may have ten times more


def flat_config(config: dict, prefix: str = "") -> dict:
    """Flatten nested settings to {dotted name: value}."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, dict) and "value" in value and {*value} <= {"value", "desc"}:  # wandb's config.yaml
            value = value["value"]
        is_folder = isinstance(value, dict) and value
        flat |= flat_config(value, f"{prefix}{key}.") if is_folder else {f"{prefix}{key}": value}
    return flat


def number_or_text(text):
    """Convert a word of a command, or a YAML value, to a number, boolean, None or unquoted text."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False, "null": None, "none": None}.get(text.strip().lower(), text.strip("'\""))


def shell_settings(text: str) -> dict:
    """Settings `--flag value`, `--flag=value` and `a.b=1` of a shell script, with its variables expanded."""
    text = re.sub(r"\$\{\w+:?[-=]([^${}]*)\}", r"\1", text)  # ${NAME:-default}
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


def loaded_name(node: ast.expr) -> ast.expr | None:
    """The file or model that a chain such as `load_dataset("json", data_files=FILE)["train"].map(…)` has all of."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Call) and (call := LOADS.search(ast.unparse(node.func))):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            is_part = "[" in ast.unparse(given["split"]) if "split" in given else len(node.args) > 1
            if is_part:
                return None
            return given.get("data_files") if call[1] == "load_dataset" else (node.args or [None])[0]
        if isinstance(node, ast.Attribute) and node.attr not in KEEPS:
            return None
        node = node.func if isinstance(node, ast.Call) else node.value
    return None


def keeps_itself(name: str, value: ast.expr) -> bool:
    """Whether a name stands for the same file or model as before, as in `rows = rows.map(…)`."""
    return isinstance(value, ast.Call) and ast.unparse(value.func) in [f"{name}.{method}" for method in KEEPS]


def expression_value(node: ast.expr, known: dict[str, ast.expr]):
    """Evaluate a literal, a name in `known`, a sum, a product, a call's keywords or what it loads; else the source."""
    for _ in range(4):  # a name may stand for another name
        if isinstance(node, ast.Name | ast.Attribute):
            node = known.get(getattr(node, "attr", None) or node.id, node)
    if isinstance(node, ast.Call) and (ast.unparse(node.func) == "dict" or SAMPLES_CALL.search(ast.unparse(node.func))):
        return call_settings(node, known)
    if loaded := loaded_name(node):  # a name may be loaded from its own former value
        return expression_value(loaded, {name: value for name, value in known.items() if value is not node})
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        sides = [expression_value(side, known) for side in (node.left, node.right)]
        if all(isinstance(side, int | float) for side in sides) and sides[1]:
            return ARITHMETIC[type(node.op)](*sides)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {getattr(key, "value", ""): expression_value(value, known) for key, value in pairs}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return ast.unparse(node)


def call_settings(call: ast.Call, known: dict[str, ast.expr]) -> dict:
    """The keyword arguments of a call, including those of `**name`."""
    flat = {}
    for keyword in call.keywords:
        value = expression_value(keyword.value, known)
        flat |= {keyword.arg: value} if keyword.arg else value if isinstance(value, dict) else {}
    return flat


def training_nodes(tree: ast.Module) -> list[ast.AST]:
    """The nodes of a script, except those in functions and classes that evaluate, by their names."""
    nodes = [tree]
    for node in nodes:
        for child in ast.iter_child_nodes(node):
            is_named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if not is_named or not EVALUATES.fullmatch(child.name):
                nodes.append(child)
    return nodes


def script_settings(text: str) -> dict:
    """Settings in a Python script, which is parsed and never run.

    They are the keyword arguments of its configs and trainers. If these hold no known setting, they are those of its
    samplers and its variables. A name is resolved if the file gives it one value: by assignment or as a flag's default.
    """
    calls, given = [], {}
    for node in training_nodes(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            given.setdefault(ast.unparse(target).rpartition(".")[2], []).append(node.value)
        elif isinstance(node, ast.Call):
            calls.append(node)
            default = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
            if default and node.args and ast.unparse(node.func).endswith("add_argument"):
                given.setdefault(ast.unparse(node.args[-1]).strip("-'").replace("-", "_"), []).extend(default)
    known = {name: x for name, (x, *later) in given.items() if all(keeps_itself(name, value) for value in later)}
    trains, samples = (
        [flat_config(call_settings(call, known)) for call in calls if pattern.search(ast.unparse(call.func))]
        for pattern in (CONFIG_CALL, SAMPLES_CALL)
    )
    flat = {key: value for call in trains for key, value in call.items()}
    if common_settings(flat):
        return flat
    # where samplers disagree, one may belong to an evaluation: only what they agree on counts
    agreed = {k: v for call in samples for k, v in call.items() if all(other.get(k, v) == v for other in samples)}
    return agreed | {name.lower(): expression_value(value, known) for name, value in known.items()}


def read_settings(path: Path) -> dict:
    """The settings in a file by dotted names; {} if it is unreadable, too large or has none."""
    import yaml

    loaders = {".json": json.loads, ".ipynb": json.loads, ".toml": tomllib.loads}
    loaders |= dict.fromkeys((".yaml", ".yml"), yaml.safe_load)
    try:
        most = MOST_BYTES * (10 if path.suffix == ".ipynb" else 1)
        text = path.read_text(encoding="utf-8-sig", errors="replace") if path.stat().st_size < most else ""
        if path.suffix == ".py":
            return script_settings(text)
        if path.suffix not in loaders:
            return shell_settings(text)
        loaded = loaders[path.suffix](text)
        if path.suffix == ".ipynb":
            cells = ["".join(cell["source"]) for cell in loaded["cells"] if cell["cell_type"] == "code"]
            return script_settings("\n".join(map(without_magics, cells)))
    except (OSError, ValueError, LookupError, TypeError, SyntaxError, RecursionError, yaml.YAMLError):
        return {}
    # verl_train.py's, wandb-metadata.json's, or hydra's alone
    overrides = loaded.get("overrides", loaded.get("args")) if isinstance(loaded, dict) else loaded
    if isinstance(overrides, list):
        return shell_settings("\n".join(map(str, overrides)))
    flat = flat_config(loaded) if isinstance(loaded, dict) else {}
    named = {f"${{{key}}}": value for key, value in flat.items()}  # OmegaConf's references
    return {k: number_or_text(named.get(v, v) if isinstance(v, str) else v) for k, v in flat.items()}


def common_settings(flat: dict) -> dict:
    """Map settings by dotted names to common names (`SETTINGS`); the shortest matching name wins."""
    settings, extra = {}, flat.get("trainer_args")
    flat = flat | shell_settings(" ".join(map(str, extra))) if isinstance(extra, list) else flat
    for name, endings in SETTINGS.items():
        lists = name in ("data", "reward")
        known = {k: v for k, v in flat.items() if v is not None and (lists or not isinstance(v, list))}
        for ending in endings.split():
            keys = [k for k in known if f".{k}".endswith(f".{ending}") and ("critic" in name or "critic" not in k)]
            keys = [key for key in keys if name == "eval_data" or not OTHER_PARTS.search(key)]
            if keys and name not in settings:
                settings[name] = known[min(keys, key=len)]
    if "learning_rate" in flat and "beta" not in flat and "num_generations" in flat:
        settings["kl"] = 0.0  # TRL's default
    return settings


def is_of_run(flat: dict, rates: list) -> bool:
    """Whether a learning rate in a file is the highest logged one, up to rounding, or one that may not be reached."""
    endings = tuple(f".{name}" for name in SETTINGS["lr"].split())
    given = [as_number(value) for key, value in flat.items() if f".{key}".endswith(endings)]
    values = [value for _, value in rates]
    if not any(given) or not any(values):
        return True
    # a log from the beginning reached the peak if its rate is constant or fell
    reached = rates[0][0] <= 0.1 * rates[-1][0] and (values[-1] < max(values) or min(values) == max(values))
    return any(rate and 0.5 <= rate / max(values) <= (2 if reached else math.inf) for rate in given)


def differ(one: dict, other: dict) -> bool:
    """Whether two files set the learning rate or group size of runs, and differ in a number."""
    one, other = common_settings(one), common_settings(other)
    kinds = [known.keys() & {"lr", "group_size"} for known in (one, other)]
    values = [{as_number(known[name]) for known in (one, other)} - {None} for name in one.keys() & other.keys()]
    return len(other) >= 3 and kinds[0] == kinds[1] != set() and any(len(pair) > 1 for pair in values)


def settings_beside(folder: Path, rates=(), remarks=None) -> tuple[Path, dict] | None:
    """(file, settings) of the file with the most known settings in a folder that may be of a run with these rates.

    If files of one ending differ in a number, `remarks` gets one that says so, and none is read.
    """
    patterns = ("*.json", "*.yaml", "*.yml", "*.toml", ".hydra/*.yaml", "*.py", "*.ipynb", "*.sh", "*.txt", "command*")
    paths = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    candidates = [(path, read_settings(path)) for path in paths if not NO_SETTINGS.match(path.stem.lower())]
    candidates = [(path, flat) for path, flat in candidates if path.suffix == ".py" or is_of_run(flat, rates)]
    path, flat = max(candidates, key=lambda entry: len(common_settings(entry[1])), default=(folder, {}))
    alike = [(p.name, more) for p, more in candidates if p.suffix == path.suffix and is_of_run(more, rates)]
    others = [name for name, more in alike if differ(flat, more)]
    if others and remarks is not None:
        remarks += [f"{path.name} and {others[0]} hold different settings: none was read; try --settings {path}"]
        return None
    for other, flags in candidates if path.suffix == ".py" else ():  # a script's command line overrides its defaults
        flat = flat | (flags if other.suffix in ("", ".sh", ".txt") else {})
    known = common_settings(flat)
    return (path, flat) if len(known) >= 3 and known.keys() & {"lr", "group_size"} else None


def settings_of(folder: Path, rates=(), remarks=None) -> tuple[Path, dict] | None:
    """(File, settings) of a run's folder: in it, in `job` of verl_train.py, or of the script that wrote it."""
    if inside := settings_beside(folder, rates, remarks) or settings_beside(folder / "job", rates, remarks):
        return inside
    script = script_of_output(folder)
    return (script, read_settings(script)) if script else None


def script_of_output(folder: Path) -> Path | None:
    """The script, at most three folders above, that names this folder as its output_dir."""
    for place in folder.resolve().parents[:3]:
        for path in [path for ending in ("py", "ipynb", "sh") for path in sorted(place.glob(f"*.{ending}"))[:20]]:
            named = read_settings(path).get("output_dir")
            if isinstance(named, str) and (place / named).resolve() == folder.resolve():
                return path
    return None


# -------------------------------------------------------------------- sample texts (src/parts/reading/sample_texts.py)

COMPLETIONS = {"completions", "completion", "solution_str", "response", "responses"}  # reward functions' argument


# ------------------------------------------------------------------------ run folder (src/parts/reading/run_folder.py)


def json_beside(folder: Path, name: str, remarks: list[str] | None = None) -> dict:
    """The object in a JSON file of a run's folder; {} if there is no file, or it is unreadable, which adds a remark."""
    try:
        return dict(json.loads((folder / name).read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError, TypeError, RecursionError):
        if remarks is not None and (folder / name).exists():
            remarks.append(f"{name} beside it could not be read")
        return {}


def named_functions(path: Path, names: list[str], takes: set[str] = COMPLETIONS) -> tuple[str, list[str]]:
    """(text, function names) of a file: those in `names`; for [""] those that take `takes` and serve no other."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    except (OSError, SyntaxError, ValueError):
        return "", []
    if names != [""]:
        return text, [node.name for node in functions if node.name in names]
    scorers = [node for node in functions if {argument.arg for argument in node.args.args} & takes]
    used = {n.id for node in scorers for n in ast.walk(node) if isinstance(n, ast.Name) and n.id != node.name}
    return text, [node.name for node in scorers if node.name not in used]


def function_of(path: Path, names: list[str]) -> tuple[str, str]:
    """A file's correctness reward: its name, its source with all that it uses; "" if the file has none or several."""
    text, chosen = named_functions(path, names)
    if not chosen or (names == [""] and len(chosen) > 1):
        return "", ""  # any of several may be the reward
    name = min(chosen, key=lambda name: not names_correctness(name))
    return name, extract(text, [name])


# --------------------------------------------------------------------------------- proof (src/programs/prove/proof.py)

CONTRACT = {"accumulate_gradients", "make_experience"}  # functions that only trainers have
SHOWN = ("logprob_shift", "advantages_detached", "accumulation")  # checks whose measurements are quoted
NEVER_RUN = "its train and what a run saves, for which try prove.py OUT"


@dataclass
class Proof:
    """What was found out about one thing."""

    kind: str
    thing: str
    figures: dict = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)
    is_open: bool = False  # the most important figure could not be measured

    @property
    def proved(self) -> bool:
        """Whether nothing was found against the thing and its most important figure was measured."""
        return not self.findings and not self.is_open

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def find(self, finding: str) -> None:
        self.findings += [finding] if finding not in self.findings else []

    def skip(self, figure: str, why: str) -> None:
        """Note what could not be measured, also as a sentence."""
        self.not_measured.append(f"{figure}: {why}")
        self.say(f"{figure} was not measured: {why}.")


def parsed(path: Path) -> list[ast.stmt]:
    """The top-level statements of a Python file, which is not run."""
    try:
        return ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"got {path}, which cannot be read ({error}); expected Python in UTF-8") from None


def shown(values) -> str:
    """Numbers as text: `0.434 to 0.910` for two, `0.434` for one."""
    return " to ".join(f"{x:.3f}" for x in (values if isinstance(values, list | tuple) else [values]))


def report_of(script: str, words: list[str], seconds: float, python: str = sys.executable) -> dict:
    """Run another script of the bundle and return its JSON; UserError if it refuses its input or takes too long."""
    path = BUNDLE / "scripts" / script
    need(path.is_file(), f"got no {path}; expected it, as prove.py calls it; try prove.py from inside the bundle")
    try:
        done = subprocess.run([python, str(path), *words], capture_output=True, text=True, timeout=max(10.0, seconds))
    except subprocess.TimeoutExpired:
        raise UserError(f"got checks that take longer than {seconds:g} s; try a larger --minutes") from None
    if done.returncode not in (0, 1) or not done.stdout.strip():
        message = (done.stderr.strip().splitlines() or [f"got exit code {done.returncode} of {path}"])[-1]
        hint = f"; flags of {script} go after --" if "try --" in message else ""
        raise UserError(message.removeprefix("error: ") + hint)
    return json.loads(done.stdout)


def preflight_of(spec: str, data: str, flags: list[str], seconds: float) -> dict:
    """reward_preflight.py's report on a reward; a call may take 1/8 of the time before it is a hang."""
    limits = ["--timeout_s", f"{seconds / 8:g}", "--budget_s", f"{0.6 * seconds:g}"]
    return report_of("reward_preflight.py", ["--reward", spec, "--data", data, "--json", *limits, *flags], seconds)


def failures_of(report: dict) -> list[str]:
    """The first failure of each check in reward_preflight.py's report, as text."""
    against = [x for x in reversed(report["findings"]) if x["severity"] == "fail"]
    failed = {x["check"]: f"{x['message']}; try: {x['try']}" if x.get("try") else x["message"] for x in against}
    return [f"{check}: {message}" for check, message in reversed(failed.items())]


def prove_trainer(file: Path, flags: list[str], seconds: float) -> Proof:
    proof, report = Proof("trainer", str(file)), report_of("selfcheck.py", [str(file), *flags, "--json"], seconds)
    passed, failed, rest = ([x for x in report["checks"] if x["status"] == s] for s in ("pass", "FAIL", "n/a"))
    proof.figures["checks"] = {x["name"]: x for x in report["checks"]}
    proof.findings = [f"{x['name']}: {x['measured']}; try: {x['try']}" for x in failed]
    proof.not_measured = [f"{x['name']}: {x['measured']}" for x in rest]
    ran, named = len(passed) + len(failed), " ".join([str(file), *flags])
    proof.say(f"{len(passed)} of {ran} checks of selfcheck.py pass for {named}.")
    if measured := [f"{x['name']}: {x['measured']}" for x in passed if x["name"] in SHOWN]:
        proof.say(f"Measured: {'; '.join(measured)}.")
    proof.say(f"Not checked: {'; '.join([*(x['name'] for x in rest), NEVER_RUN])}.")
    return proof


def prove_job(path: Path, python: str, seconds: float) -> Proof:
    """Check settings of verl_train.py (.yaml), or Hydra overrides, one a line (others), in a Python that has verl."""
    proof, flag = Proof("verl job", str(path)), "--config" if path.suffix in (".yaml", ".yml") else "--overrides"
    is_hydra = flag == "--config" and re.search("(?m)^actor_rollout_ref:", path.read_text("utf-8", "replace"))
    advice = "expected settings of verl_train.py; try overrides in a .txt, one KEY=VALUE per line"
    need(not is_hydra, f"got {path}, which is verl's own YAML; {advice}")
    need(Path(python).is_file(), f"got --python {python}, which is not a file; expected a Python that has verl")
    report = report_of("verl_train.py", ["--check", flag, str(path)], seconds, python)
    proof.findings, proof.figures = report.pop("findings"), report
    if "checked" in report:
        proof.skip("What verl says", f"{python} has no verl; checked: {report['checked'].partition(';')[0]}")
        return proof
    proof.say(f"verl {report['verl']} composes the {report['overrides']} overrides of {path} in its own configuration.")
    if "data" in report:
        rows = f"{report['data']['rows that fit']} of {report['data']['rows']} training rows"
        same = "" if flag == "--overrides" else "; prompts have the same token ids as in ppo_train.py"
        proof.say(f"verl's own data set takes {rows}{same}.")
    if tried := report.get("reward"):
        reward = "The reward" if flag == "--overrides" else "The job's copy of the reward, alone in its folder,"
        how = f"{tried['completions']} completions of {tried['rows']} rows one by one, as verl does"
        proof.say(f"{reward} scores {how}; the scores are {tried['scores']}.")
        if len(tried["scores"]) == 1:
            proof.is_open = True
            proof.skip("Whether the reward tells right from wrong", "all texts, golds among them, have one score")
    if "unchecked" in report:
        proof.skip("What the reward pays for the job's rows", report["unchecked"])
    return proof


# ----------------------------------------------------------------- exact figures (src/programs/prove/exact_figures.py)

Z95 = 1.959963984540054  # normal quantile of 97.5 %


def share_interval(successes: int, n: int) -> list[float]:
    """Wilson's 95 % interval: the p at which (p - successes/n)^2 = z^2 p (1 - p) / n."""
    share, z2 = successes / n, Z95**2
    a, b, c = 1 + z2 / n, -(2 * share + z2 / n), share**2  # a p^2 + b p + c = 0
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    low, high = (-b - root) / (2 * a), (-b + root) / (2 * a)
    return [max(0.0, low) if successes else 0.0, min(1.0, high) if successes < n else 1.0]


def t_inside(t: float, df: int) -> float:
    """P(|T| <= t) of Student's t with `df` degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    >>> round(t_inside(2.0, 1), 6), round(t_inside(1.979930, 120), 6)
    (0.704833, 0.95)
    """
    angle = math.atan(t / math.sqrt(df))
    term = total = 1.0 if df % 2 == 0 else math.cos(angle)
    square = math.cos(angle) ** 2
    for k in range(2 + df % 2, df - 1, 2):
        term *= (k - 1) / k * square
        total += term
    if df % 2 == 0:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if df > 1 else 0.0))


def mean_test(values: list) -> dict:
    """Mean, 95 % interval and two-sided p against 0 by Student's t, of two values or more; None if all are equal.

    >>> figures = mean_test([1.0, 2.0, 3.0, 6.0])
    >>> [round(x, 4) for x in (figures["value"], *figures["ci95"], figures["p"])]
    [3.0, -0.4375, 6.4375, 0.0689]
    """
    values, n = [*map(float, values)], len(values)
    mean = math.fsum(values) / n
    if len({*values}) < 2:
        return {"value": mean, "ci95": None, "p": None}
    error = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1) / n)
    low, high = 0.0, 1e4  # of the quantile of 97.5 %
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_inside(middle, n - 1) < 0.95 else (low, middle)
    p = max(0.0, 1.0 - t_inside(abs(mean) / error, n - 1))
    return {"value": mean, "ci95": [mean - high * error, mean + high * error], "p": p}


def exact_p(better: int, worse: int) -> float:
    """Two-sided exact p of McNemar's test, computed with integers.

    >>> exact_p(1, 5)
    0.21875
    """
    n = better + worse
    tail = Fraction(sum(math.comb(n, k) for k in range(min(better, worse) + 1)), 2**n)
    return float(min(Fraction(1), 2 * tail))


def pass_at(scores: list, k: int) -> Fraction:
    """Pass@k of a row from n >= k samples of score 0 or 1 (Chen 2021, eq. 1)."""
    failed = len(scores) - int(sum(scores))
    return 1 - Fraction(math.comb(failed, k), math.comb(len(scores), k))


def unpaired_p(right: int, n: int, other_right: int, other_n: int) -> float:
    """Two-sided p of Fisher's exact test on two shares, computed with integers.

    >>> round(unpaired_p(3, 4, 1, 4), 6)
    0.485714
    """
    total = right + other_right
    ways = [math.comb(n, k) * math.comb(other_n, total - k) for k in range(max(0, total - other_n), min(n, total) + 1)]
    observed = math.comb(n, right) * math.comb(other_n, other_right)
    return float(Fraction(sum(x for x in ways if x <= observed), sum(ways)))


def share_figures(by_key: dict, higher_is_better: bool | None) -> dict:
    """The mean of rows' values, {row's key: value or None}, with Wilson's interval if all are 0 or 1, else with t's.

    Counts, of which neither higher nor lower is better, have none.
    """
    values = [x for x in by_key.values() if x is not None]
    figures = {"value": float(sum(values) / len(values)) if values else None, "n": len(values)}
    figures |= {"ci95": None, "interval": "none"}
    if values and {*values} <= {0, 1} and higher_is_better is not None:
        figures |= {"ci95": share_interval(int(sum(values)), len(values)), "interval": "Wilson"}
    elif len({*values}) > 1 and higher_is_better is not None:
        figures |= {"ci95": mean_test(values)["ci95"], "interval": "t"}
    return figures | {"values": by_key, "higher_is_better": higher_is_better}


def paired_figures(before: list[bool], after: list[bool]) -> dict:
    """Shares with their intervals, and McNemar's test, of two outcomes on the same rows."""
    n, better = len(before), sum(b and not a for a, b in zip(before, after, strict=True))
    worse = sum(a and not b for a, b in zip(before, after, strict=True))
    figures = {"rows": n, "before": sum(before) / n, "after": sum(after) / n}
    figures |= {"ci95_before": share_interval(sum(before), n), "ci95_after": share_interval(sum(after), n)}
    return figures | {"better": better, "worse": worse, "p": exact_p(better, worse)}


def difference_interval(better: int, worse: int, n: int) -> list[float]:
    """95 % interval of a difference of paired shares, with one row added to each side (Bonett and Price 2012)."""
    up, down = Fraction(better + 1, n + 2), Fraction(worse + 1, n + 2)
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return [max(-1.0, float(up - down) - half), min(1.0, float(up - down) + half)]


# ------------------------------------------------------------------------- run proof (src/programs/prove/run_proof.py)

FALL_P = 0.01  # a held-out accuracy that falls with a p below this is a finding
MOST_ROWS = 256  # held-out rows that are measured
BATCH = 32  # rows measured at once; the time for earlier batches says whether another fits
TRAILING = re.compile(r"[.,;:?=]+$")  # ignored at the end of a question
PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014\u2212", "''\"\"---", "\u200b\u200c\u200d\ufeff\xad")
DEFAULTS = {  # settings that not every program has
    **{"teacher": [], "reward": [], "eval_data": "", "environment": "", "prompt_column": "prompt", "chat": False},
    **{"hold_out": 0, "steps": 0, "reward_source": "", "is_best": False},
    **{"chat_template_kwargs": "", "max_prompt_tokens": 512, "max_new_tokens": 256, "temperature": 1.0},
}
MODEL_NAMES = ("model", "model_name_or_path", "pretrain", "model_name", "base_model", "model_path", "model_id")
NAMES_OF_TRL = {"max_prompt_length": "max_prompt_tokens", "max_completion_length": "max_new_tokens"}


def values_of(folder: Path) -> dict:
    """The settings saved in a run's folder, by our scripts or a page; {} if it is no run's folder."""
    with contextlib.suppress(UserError, OSError, ValueError):  # a model's config.json
        values = json_beside(folder, "settings.json")
        values = values if {"model", "data"} <= values.keys() else saved_settings(folder)
        return values if {"model", "data"} <= values.keys() else {}
    return {}


def other_settings(folder: Path) -> dict:
    """What the folder of another trainer says of its run, such as TRL's; {} without a saved model.

    The start is the base that a file of settings, the adapter or the model's card names; "" if none does.
    """
    checkpoints = sorted(folder.glob("checkpoint-*[0-9]"), key=lambda path: int(path.name.rpartition("-")[2]))
    named = [x for x in sorted(folder.glob("*")) if re.search("final|model|merged|adapter|best|policy", x.name)]
    places = [folder, *named, *reversed(checkpoints)]
    saved = next((x for x in places if (x / "adapter_config.json").is_file() or [*x.glob("*.safetensors")]), None)
    if not saved:
        return {}
    script, flat = settings_of(folder) or (folder, {})
    known, bases = common_settings(flat), [flat.get(name) for name in MODEL_NAMES]
    # a merged model lies in its adapter's folder, or beside its run's checkpoints; other neighbours are other runs'
    adapters = [saved, saved.parent, *sorted(saved.parent.glob("checkpoint-*[0-9]"))]
    bases += [json_beside(x, "adapter_config.json").get("base_model_name_or_path") for x in adapters]
    cards = [x.read_text(encoding="utf-8", errors="replace") for x in folder.glob("README.md")]
    bases += re.findall(r"^base_model: *(\S+)$", "".join(cards), re.MULTILINE)
    values = {name: known[name] for name in ("data", "eval_data") if isinstance(known.get(name), str)}
    numbers = {"max_new_tokens": known.get("max_length"), "temperature": known.get("temperature")}
    values |= {name: x for name, x in numbers.items() if isinstance(x, int | float)}  # no expression of a script
    given = str(known.get("reward", ""))
    names = named_functions(script, re.findall(r"\w+", given))[1] if script.suffix == ".py" else []
    correct = [name for name in names if names_correctness(name)] or names
    if re.search(r"\.py:\w+$", given):
        values["reward"] = given
    elif len(correct) == 1:
        values |= {"reward": f"{script}:{correct[0]}", "reward_source": function_of(script, correct)[1]}
    bases = [x for x in bases if isinstance(x, str) and (script.suffix != ".py" or re.fullmatch(r"[\w./~-]+", x))]
    model = max(bases, key=lambda x: "/" in x or Path(x).exists(), default="")  # one word may be a script's variable
    is_best = str(flat.get("load_best_model_at_end")).lower() == "true" or "best" in saved.name
    return {"data": "", **values, "model": model, "saved": str(saved), "is_best": is_best}


def run_settings(folder: Path, held_out: str = "") -> SimpleNamespace:
    """A run's settings under our names, with paths as seen from here.

    `saved` is the folder of the trained model; `reward` and `teacher` are lists. `held_out` replaces its eval_data.
    """
    values, remarks = values_of(folder) or other_settings(folder), []
    is_page = {"model", "data"} <= json_beside(folder, "settings.json", remarks).keys()
    got = f"got {folder / 'settings.json'}, which is no JSON object"
    need(values["model"] or not remarks, f"{got}; expected a run's settings; try the run's copy of that file")
    values = {**DEFAULTS, **{NAMES_OF_TRL.get(name, name): value for name, value in values.items()}}
    values |= {"eval_data": held_out, "hold_out": 0, "is_best": False} if held_out else {}

    def place(name: str) -> str:
        """A path as seen from here, found in the run's folder, its parents or the bundle; other names unchanged."""
        places = (Path(name), folder / name, *(parent / name for parent in folder.resolve().parents), BUNDLE / name)
        return str(next((path for path in places if name and path.exists()), name))

    saved = Path(values.pop("saved", folder if is_page else folder / "final"))
    run = SimpleNamespace(**values, folder=folder, saved=saved, is_page=is_page, held_out_rows=math.inf)
    run.remarks = remarks
    for name in ("model", "data"):
        setattr(run, name, place(values[name]))
    run.eval_data, run.template = place(held_out_source(run)), template_settings(run)
    rewards, teachers = ([x] if isinstance(x, str) else x for x in (run.reward or [], run.teacher or []))
    if not rewards and not teachers and not run.environment and run.data and values_of(folder):
        with contextlib.suppress(UserError):  # the rows fit no reward of ours
            rewards = specs_for(run.data, [])
    run.reward = ["".join((place(file), *rest)) for file, *rest in (spec.rpartition(":") for spec in rewards)]
    run.score_with = run.reward
    if run.reward_source:  # to import a script would train
        run.temporary = tempfile.TemporaryDirectory()
        copy = Path(run.temporary.name, "rewards.py")
        copy.write_text(run.reward_source, encoding="utf-8")
        run.score_with = [f"{copy}:{spec.rpartition(':')[2]}" for spec in run.reward]
    run.teacher = [place(name.partition("=")[2] or name) for name in teachers]
    return run


def rows_of(source: str, run) -> list[dict]:
    """Rows {"prompt", "columns"} of a file."""
    return [prompt_row(row, run.prompt_column, place) for place, row in read_prompts(source, run.prompt_column)]


def prove_run(folder: Path, seconds: float, held_out: str = "") -> Proof:
    """Measure a run within `seconds`, on the rows `held_out` or its own; the first batch is measured in any case."""
    started, run = time.perf_counter(), run_settings(folder, held_out)
    proof = Proof("run", str(folder), not_measured=run.remarks)
    need(run.saved.is_dir(), f"got {folder} without {run.saved}; expected a run that has ended; try it then")
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if device.type == "cpu":
        CpuThreads().begin(SimpleNamespace(threads="auto"), device)
    source = run.model if run.model and not any(run.saved.glob("*token*")) else run.saved
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        networks = {"after": load_plainly(run.saved)}
    except Exception as error:  # transformers raises many kinds for a damaged folder
        proof.find(f"the saved model {run.saved} with {source}'s tokenizer does not load: {error!r:.300}")
        return proof
    run.start = f"its start {run.model} does not load here" if run.model else "no file or script names its start"
    for name, source in ([("before", run.model)] if run.model else []) + [("teacher", x) for x in run.teacher[:1]]:
        try:
            networks[name] = load_plainly(source)
        except Exception as error:  # the start may be deleted, the teacher behind a server
            proof.not_measured.append(f"the {name} model {source} does not load here: {str(error)[:200]}")
    prove_weights(run, proof, networks, tokenizer)
    with contextlib.suppress(Exception):  # the start may have no tokenizer
        prove_tokenizer(run, proof, networks["after"], transformers.AutoTokenizer.from_pretrained(run.model), tokenizer)
    networks = {name: network.to(device).eval() for name, network in networks.items()}
    held_out = prove_overlap(run, proof, tokenizer)
    obstacles = {
        "the run played conversations; try evaluation.py --environment": run.environment,
        "the run names no held-out data that can be read; try --data FILE": not held_out,
        f"{run.start}; try {run.saved / 'settings.json'} with model, data and reward": "before" not in networks,
        "the saved weights are not finite": not proof.figures["weights_are_finite"],
    }
    reasons = [text for text, holds in obstacles.items() if holds]
    if reasons:
        proof.is_open = True
        for figure in ("Held-out accuracy", "KL"):
            proof.skip(figure, reasons[0])
        return proof
    rows = [held_out[i] for i in random.Random(0).sample(range(len(held_out)), len(held_out))]
    chat = run.chat and (bool(tokenizer.chat_template) or not run.is_page)
    for row in rows:
        row["prompt_ids"] = encode_prompt(tokenizer, as_turns(row["prompt"], chat), **run.template)
    rows = [row for row in rows if 0 < len(row["prompt_ids"]) <= run.max_prompt_tokens][:MOST_ROWS]
    got = f"got {folder}, whose held-out rows of {run.eval_data} are all longer than {run.max_prompt_tokens} tokens"
    need(rows, f"{got}; expected rows that fit")
    measured = None
    try:
        measured = Measurement(run, networks, tokenizer)
        measured.go_through(rows, seconds - (time.perf_counter() - started))
    except UserError as error:
        need(measured or run.reward_source, str(error))
        if not run.reward_source:
            proof.find(f"the run's reward fails on what the models answer: {error}")
            return proof
        proof.is_open = True  # the script may give its rows other columns
        fails = f"{run.reward[0]} fails on {run.eval_data}; try the columns that the script gives its rows: {error}"
        proof.skip("Held-out accuracy", fails)
        return proof
    describe_accuracy(run, proof, measured)
    describe_kl(proof, measured, device)
    return proof


def prove_tokenizer(run, proof: Proof, network, before, after) -> None:
    """Add findings where the saved tokenizer does not fit the saved model or the start."""
    old, new, start = before.get_vocab(), after.get_vocab(), f"its start {run.model}"
    if not any(run.saved.glob("*token*")) and not (run.saved / "adapter_config.json").is_file():  # it takes its base's
        advice = "try saving the start's beside the model; measured with the start's"
        proof.find(f"{run.saved} has no tokenizer; {advice}")
    if count := sum(new.get(token) != number for token, number in old.items()):
        proof.find(f"the saved tokenizer has other ids for {count} of {len(old)} tokens of {start}")
    if before.chat_template and not after.chat_template:
        proof.find(f"the saved tokenizer has no chat template, that of {start} has one")
    rows = network.get_input_embeddings().weight.shape[0]
    if len(new) > max(rows, len(old)):
        proof.find(f"the saved model has embeddings of {rows} tokens, the saved tokenizer has {len(new)}")


def prove_weights(run, proof: Proof, networks: dict, tokenizer) -> None:
    """Report how far the weights moved; none, or values that are not finite, are findings."""
    loads, after = f"{run.saved} loads in transformers {transformers.__version__}", networks["after"]
    proof.figures["weights_are_finite"] = all(bool(x.isfinite().all()) for x in after.state_dict().values())
    if not proof.figures["weights_are_finite"]:
        proof.find("the saved model has weights that are not finite")
    if "before" not in networks:
        proof.say(f"{loads}; {run.start}, so that its weights cannot be compared.")
        return
    try:
        change = weight_change(networks["before"], networks["after"], dtype_of(run.saved))
    except (KeyError, RuntimeError) as error:
        proof.find(f"the saved model has other tensors than its start {run.model}: {str(error)[:200]}")
        proof.figures["largest_weight_change"] = None
        return
    start, saved = (networks[name].generation_config.eos_token_id for name in ("before", "after"))
    usual, ends = ending_ids(start, tokenizer), {*(saved if isinstance(saved, list) else [saved])}
    if start is not None and not ends & {*usual, *tokenizer.added_tokens_decoder}:  # such as a template's <|im_end|>
        text = f"the saved model has {'no end token' if saved is None else f'end token {saved}'}"
        proof.find(f"{text}, its start and tokenizer have {usual}: its answers run to the token limit")
    largest, share = change["largest_weight_change"], change["tensors_changed"]
    proof.figures |= {key: value if math.isfinite(value) else str(value) for key, value in change.items()}
    if not largest:
        proof.find(f"the saved model is the unchanged start {run.model}: every weight is the same")
    proof.say(f"{loads}; {share:.0%} of its tensors differ from those of {run.model}, by at most {largest:.3g}.")


def asked_by(row: dict, with_columns: bool) -> tuple[str, str]:
    """`task_of` a row, also without punctuation at its end, typographic quotes and dashes, and invisible characters."""
    asked, columns = task_of(row, with_columns)
    return TRAILING.sub("", asked.translate(PLAIN)) or asked, columns


def split_rows(run, tokenizer) -> tuple[list[dict], list[dict]]:
    """(Training rows, held-out rows), as the run's --hold_out draws them or from its two files."""
    if run.eval_data:
        return rows_of(run.data, run), rows_of(run.eval_data, run)
    rows, with_columns = rows_of(run.data, run), bool(run.environment)
    ids = [encode_prompt(tokenizer, as_turns(row["prompt"], run.chat), **run.template) for row in rows]
    rows = [row for row, prompt in zip(rows, ids, strict=True) if len(prompt) <= run.max_prompt_tokens]
    drawn = drawn_tasks([task_of(row, with_columns) for row in rows], run.hold_out)
    parts = [[row for row in rows if (task_of(row, with_columns) in drawn) == side] for side in (False, True)]
    run.eval_data = f"{run.data} (--hold_out {run.hold_out})"
    return parts[0], parts[1]


def prove_overlap(run, proof: Proof, tokenizer) -> list[dict]:
    """The distinct held-out rows; prompts of theirs that also occur in training are a finding."""
    if not run.eval_data and not run.hold_out:
        proof.skip("Overlap of training and held-out prompts", "the run names no held-out data")
        return []
    held_out, with_columns = [], bool(run.environment)
    try:
        held_out = rows_of(run.eval_data, run) if run.eval_data else []
        training, held_out = split_rows(run, tokenizer)
    except UserError as error:
        proof.skip("Overlap of training and held-out prompts", str(error)[:200])
        return held_out
    trained, run.held_out_rows = {asked_by(row, with_columns) for row in training}, len(held_out)
    once = {json.dumps(row, sort_keys=True, default=str): row for row in held_out}
    repeated = f"; {len(held_out) - len(once)} of {len(held_out)} held-out rows repeat another one and are left out"
    repeated *= len(once) < len(held_out)
    held_out = [*once.values()]
    tasks = [asked_by(row, with_columns) for row in held_out]
    count, new = sum(task in trained for task in tasks), [asked for asked, _ in {*tasks} - trained]
    proof.figures |= {"held_out_rows": len(held_out), "held_out_rows_that_train": count}
    text = f"{count} of {len(held_out)} held-out prompts of {run.eval_data} also occur in {run.data}"
    also = of_swapped(new, {asked for asked, _ in trained}).replace("of them", "others")
    proof.say(f"{text}, compared without case, white space, final punctuation and system prompt{also}{repeated}.")
    if count:
        proof.find(f"{text}: the accuracy is inflated")
    return held_out


class Measurement:
    """Answers of the start and the saved model to the same rows: whether they are right, and the KL of sampled ones."""

    def __init__(self, run, networks: dict, tokenizer):
        self.run, self.networks, self.tokenizer = run, networks, tokenizer
        self.reward = Reward(run.score_with) if run.reward else None
        sampled = {"do_sample": True, "temperature": run.temperature, "top_k": 0, "top_p": 1.0}
        self.ways = ({"greedy": {"do_sample": False}} if self.reward else {}) | {"sampled": sampled}
        self.right = {way: {"before": [], "after": []} for way in self.ways}
        self.kl, self.rows = {}, 0  # {pair of networks: (sum, tokens)}

    def go_through(self, rows: list[dict], seconds: float) -> None:
        """Measure batches while the next one should fit into `seconds`, by the mean time so far."""
        begin, spent = time.perf_counter(), 0.0
        for start in range(0, len(rows), BATCH):
            if start and spent * (1 + BATCH / start) > seconds:
                break
            self.measure(rows[start : start + BATCH])
            self.rows, spent = min(start + BATCH, len(rows)), time.perf_counter() - begin

    def measure(self, batch: list[dict]) -> None:
        """Measure one batch; the sampling seed depends only on the batch's place.

        The KL on sampled answers is that of the saved model to its start, and of either model to a teacher.
        """
        prompts = [row["prompt_ids"] for row in batch]
        for way, how in self.ways.items():
            for name in ("before", "after"):
                model = self.networks[name]
                torch.manual_seed(self.rows)
                answers = answered(model, self.tokenizer, prompts, max_new_tokens=self.run.max_new_tokens, **how)
                if self.reward:
                    texts = answer_texts(model, self.tokenizer, answers)
                    first = next(iter(self.reward(batch, texts, answers)[1].values()))
                    self.right[way][name] += [score is not None and score >= 1 for score in first]
                tokens = sum(map(len, answers)) if way == "sampled" else 0
                for other in {"before": ["teacher"], "after": ["teacher", "before"]}[name]:
                    if tokens and other in self.networks:
                        mean = reverse_kl(model, self.networks[other], prompts, answers, self.run.temperature)
                        total, count = self.kl.get((name, other), (0.0, 0))
                        self.kl[name, other] = total + mean * tokens, count + tokens


def nearest_count(share: float, rows: int) -> int:
    """The count of rows nearest to a share of them; 0 for nan."""
    return min(range(rows + 1), key=lambda count: abs(share * rows - count))


def compare_with_log(run, proof: Proof, measured: Measurement) -> str:
    """Add findings if the logged accuracies are not those of the models; returns the last one as a clause."""
    by_step = {}
    with contextlib.suppress(OSError, ValueError):
        for line in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            entry = json.loads(line or "{}")
            value, rows = entry.get("eval/accuracy"), entry.get("eval/rows")
            if isinstance(value, float | int) and isinstance(rows, float | int) and rows > 0:
                by_step[entry.get("step", 0)] = (value, int(rows))
    logged = [(step, *by_step[step]) for step in sorted(by_step)]
    if not logged:
        return ""
    if 0 < run.steps < logged[-1][0]:
        proof.find(f"metrics.jsonl goes on to step {logged[-1][0]}, but the run's settings say {run.steps} steps")
    if (most := max(rows for _, _, rows in logged)) > run.held_out_rows:
        proof.find(f"metrics.jsonl says {most} evaluated rows, {run.eval_data} has {run.held_out_rows}")
    for step, value, rows in logged:
        gap = abs(value * rows - nearest_count(value, rows))
        if not gap <= 0.02 + 1e-4 * rows:  # logs may be rounded to four digits
            proof.find(f"metrics.jsonl says eval/accuracy {value:g} at step {step}, which is no share of {rows} rows")
            break
    ends = [("after", logged[-1])] + ([("before", logged[0])] if logged[0][0] == 0 and len(logged) > 1 else [])
    for name, (step, value, rows) in ends:
        right = nearest_count(value, rows)
        reached = [measured.right[way][name] for way in measured.ways]
        chance = max(unpaired_p(right, rows, sum(x), len(x)) for x in reached)
        if chance < FALL_P:
            shares = ", ".join(f"{way} {sum(x) / len(x):.3f}" for way, x in zip(measured.ways, reached, strict=True))
            shares = f"its model reaches {shares} on {len(reached[0])} rows (Fisher's exact p = {chance:.2g} at best)"
            proof.find(f"metrics.jsonl says eval/accuracy {value:.3f} on {rows} rows at step {step}; {shares}")
    step, value, rows = logged[-1]
    return f"; metrics.jsonl says {value:.3f} on {rows} rows at step {step}"


def describe_accuracy(run, proof: Proof, measured: Measurement) -> None:
    """Add the sentences on held-out accuracy; a significant fall is a finding."""
    if not run.reward:
        proof.is_open |= not run.teacher
        names = f"no file names its reward; try {run.saved / 'settings.json'} with model, data and reward"
        proof.skip("Held-out accuracy", "the run has no reward" if run.teacher else names)
        return
    if run.is_best:
        proof.say(
            "The saved model is the best of several checkpoints: if these rows chose it, its accuracy is inflated."
        )
    log = compare_with_log(run, proof, measured)
    for way in measured.ways:
        figures = paired_figures(measured.right[way]["before"], measured.right[way]["after"])
        proof.figures[way] = figures
        how = "greedy" if way == "greedy" else f"one sample a prompt at temperature {run.temperature:g}"
        before, after = (f"{shown(figures[x])} ({shown(figures[f'ci95_{x}'])})" for x in ("before", "after"))
        test = f"{figures['better']} rows better, {figures['worse']} worse, exact McNemar p = {figures['p']:.2g}"
        proof.say(
            f"Held-out accuracy ({how}, transformers' plain generate, scored by {run.reward[0]}) goes from {before} to "
            f"{after} on {figures['rows']} rows of {run.eval_data}, 95 % Wilson intervals; {test}{log}."
        )
        log = ""
        if figures["after"] < figures["before"] and figures["p"] < FALL_P:
            proof.find(f"held-out accuracy ({how}) fell from {before} to {after}; {test}")


def describe_kl(proof: Proof, measured: Measurement, device) -> None:
    """Add the sentence on the KL and the device that measured it."""
    means = {pair: total / count for pair, (total, count) in measured.kl.items()}
    names = {"before": "start", "after": "saved model", "teacher": "teacher"}
    proof.figures["kl"] = {f"{names[p]} to {names[q]}": value for (p, q), value in means.items()}
    tokens = measured.kl.get(("after", "before"), (0, 0))[1]
    parts = "; ".join(f"of the {names[p]} to the {names[q]} {value:.3g}" for (p, q), value in means.items())
    where = f"a CPU ({torch.get_num_threads()} threads)" if device.type == "cpu" else str(device)
    proof.figures |= {"kl_tokens": tokens, "measured_rows": measured.rows, "device": where}
    proof.say(
        f"KL in nats a token, {parts or 'none sampled'}: exact over the vocabulary, on {tokens} tokens sampled "
        f"for {measured.rows} held-out prompts; measured in fp32 on {where}."
    )


# --------------------------------------------------------- other evaluations (src/programs/prove/other_evaluations.py)

AROUND = r"(mean|average|avg|overall|total)_|_(mean|rate|percent|pct)"  # around a metric's name
SAME = ["accuracy", "acc", "score", "pass", "pass@1"]  # what the first metric may be called too
COUNT = r"n|total|count|(n|num|total)_(samples|examples|rows|questions|problems|scores)"
RIGHT = "(n_|num_|total_)?(correct|right|passed|solved)"  # numbers of rows with full marks
UNCERTAINTY = "(?P<error>stderr|std_err|se|sem|standard_error)|(confidence_)?(ci|interval)(_?95)?|95_?ci"
STATED_P = r"p(_?value|_?val)?|(.+[._])?mcnemar[._](exact_)?p(_?value|_?val)?"


def stated_value(results: OtherResults, metric: str) -> tuple[Path, str, float] | None:
    """(File, dotted name, figure) that states a metric: the least nested one; None without one or with several."""
    results_name, places = column_name(results.model or results.file.stem), {}
    names = {metric, metric.rpartition(".")[2], *(SAME if metric == results.metrics[0] else [])}
    for file, figures in results.stated.items():
        for name, x in figures.items():
            place, last = column_name(f"{file.stem}.{name}"), name.removesuffix(f".{results_name}").rpartition(".")[2]
            last = last.removeprefix(f"{results_name}_").removesuffix(f"_{results_name}")
            is_own = (file == results.file and not results.model) or results.siblings < 2
            is_own = is_own or re.search(rf"(?<![a-z0-9]){re.escape(results_name)}(?![a-z0-9])", place)
            if results.task != "samples":  # lm-eval has one file of figures for all tasks
                is_own = f".{column_name(results.task)}." in place
            is_count = isinstance(x, int) and x > 1 and re.fullmatch(RIGHT, last)
            if is_own and is_number(x) and not is_count and re.sub(AROUND, "", last) in names:
                places.setdefault(name.count("."), []).append((file, name, x))
    best = places[min(places)] if places else []
    return best[0] if len({x for _, _, x in best}) == 1 else None


def is_number(x) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def is_stated(given: float, counted: float) -> bool:
    """Whether a figure, as it is or in percent, is the counted one, rounded to its digits, at least two of a share."""
    for scale, fewest in ((1, 2), (100, 0)):
        digits = max(fewest, len(f"{given:.12g}".partition(".")[2]))
        if abs(given - scale * counted) <= 0.51 * 10.0**-digits:
            return True
    return False


def recount_other(results: OtherResults, proof) -> dict:
    """{(task, metric): recounted figures} of one file; findings where what is stated for it differs."""
    rows, recounted = results.samples[results.task], {}
    if results.repeated:
        proof.find(results.repeated)
    for metric in results.metrics:
        scores = {key: [x["metrics"].get(metric) for x in samples] for key, samples in rows.items()}
        scores = {key: [x for x in values if x is not None] for key, values in scores.items()}
        if odd := sum(not math.isfinite(x) for values in scores.values() for x in values):
            proof.find(f"{results.name}, {metric}: {odd} scores are nan or infinite")
            continue
        by_key = {key: Fraction(sum(map(Fraction, x)), len(x)) if x else None for key, x in scores.items()}
        if not any(scores.values()):
            continue
        figures = recounted[results.task, metric] = share_figures(by_key, results.higher_is_better(metric))
        count = sum(metric in x["metrics"] for samples in rows.values() for x in samples)
        compare_stated(results, metric, figures, (len(rows), figures["n"], count, results.usual), proof)
        if metric == results.metrics[0] and all({*x} <= {0, 1} for x in scores.values()):
            recount_passes(results, [*scores.values()], proof)
    return recounted


def recount_passes(results: OtherResults, scores: list[list], proof) -> None:
    """Add findings where a stated pass@k, k above 1, is neither that of all samples nor that of the first k."""
    for k in range(2, 1 + min(map(len, scores))):
        shares = [sum(by(x, k) for x in scores) / len(scores) for by in (pass_at, lambda x, k: max(x[:k]))]
        for name in (f"pass@{k}", f"pass_at_{k}"):
            file, _, given = stated_value(results, name) or ("", "", None)
            if file and not any(is_stated(given, x) for x in shares):
                says = f"{results.name}: {file.name} says {name} {given:g}"
                proof.find(f"{says}; the samples give {float(shares[0]):g} on {len(scores)} rows")


def compare_stated(results: OtherResults, metric: str, figures: dict, counts: tuple, proof) -> None:
    """Add findings where the stated value of a metric, or a number of rows beside it, is not that of the samples."""
    stated = stated_value(results, metric)
    if stated is None:
        proof.not_measured.append(f"{results.name}, {metric}: no file states a single figure for it")
        return
    file, name, given = stated
    says, (parent, _, own) = f"{results.name}, {metric}: {file.name} says", name.rpartition(".")
    if not is_stated(given, figures["value"]):
        proof.find(f"{says} {name} {given:g}; the samples give {figures['value']:g} on {figures['n']} rows")
    beside = {n.removeprefix(f"{parent}."): x for n, x in results.stated[file].items() if n.startswith(parent)}
    beside["n_samples"] = results.stated[file].get(f"n_samples.{results.task.lower()}.effective")  # lm-eval's
    values = [x for x in figures["values"].values() if x is not None]
    is_main = metric == results.metrics[0] and counts[0] == counts[2]  # one sample a row
    right = sum(values) if is_main and {*values} <= {0, 1} else None
    error = stdev(map(float, values)) / len(values) ** 0.5 if is_main and len(values) > 1 else 0
    head, _, way = own.partition(",")  # lm-eval's filter
    for n, x in beside.items():
        if re.fullmatch(COUNT, n) and is_number(x) and x not in counts:
            proof.find(f"{says} {n} {x}; there are samples of {counts[0]} rows")
        if re.fullmatch(RIGHT, n) and right is not None and isinstance(x, int) and x > 1 and x != right:
            proof.find(f"{says} {n} {x}; the samples give {right}")
        kind = re.fullmatch(f"({re.escape(head)}_)?({UNCERTAINTY})", n.removesuffix(f",{way}"))
        low, high = x if isinstance(x, list) and len(x) == 2 and all(map(is_number, x)) else (given, given)
        width = high - low if low <= given <= high else 0  # else it is of another figure, such as a difference
        width = 2 * Z95 * x if kind and kind["error"] and is_number(x) else width
        # other formulas, percent and dependent rows give other widths, but not these
        if kind and error and width and not any(0.4 < width / (2 * Z95 * error * y) < 5 for y in (1, 100)):
            proof.find(f"{says} {n} {x}; the samples give a standard error of {error:.2g}")


def compare_stated_p(all_results: list[OtherResults], test: dict, proof) -> None:
    """Add a finding where a stated p is below a tenth of the exact one, which other tests, one-sided too, are not."""
    stated = {
        x: f"{file.name} says {name} {x:g}"
        for results in all_results
        for file, figures in results.stated.items()
        for name, x in figures.items()
        if is_number(x) and re.fullmatch(STATED_P, name)
    }
    if len(stated) == 1 and 10 * max(*stated, 0.001) < test["p"]:  # less may be rounded, or of few permutations
        proof.find(f"{stated.popitem()[1]}; {test['test']} gives {test['p']:.2g}")


# ------------------------------------------------------------------- graded again (src/programs/prove/graded_again.py)

GOLDS = ("answer", "final_answer", "expected_answer", "ground_truth", "solution")  # evaluation.py's columns for math
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def graded_math(samples: list[dict], rows: dict[str, dict], seconds: float) -> list[tuple[dict, str, list]]:
    """Grade samples against their rows' gold while time lasts; returns (sample, metric, its possible scores)."""
    file, end = BUNDLE / "scripts" / "math_grader.py", time.monotonic() + seconds
    need(file.is_file(), f"{file} is missing")
    grader, graded = import_file("grader", str(file), str(file)), []
    grader.start_worker(patience_s=60)
    for sample in samples:
        if time.monotonic() > end:
            break
        # graded with and without the prompt: few-shot examples or a template may hide that an answer copies the task
        prompts, row = ("", user_text(sample.get("prompt") or "")), rows.get(sample["key"], {})
        gold = next((row[name] for name in GOLDS if row.get(name) is not None), sample["gold"])
        scores = {grader.math_score(sample["completion"] or "", gold, prompt) for prompt in prompts}
        graded.append((sample, "verified", [*scores]))
    return graded


def regrade(proof, results, seconds: float) -> str:
    """Add findings about math scores that differ when computed again; returns what was computed, as a clause."""
    clauses = []
    for label, of_task in results.samples.items():
        samples = [sample for row in of_task.values() for sample in row]
        kind, _, options = label.partition(":")
        data = dict(x.split("=", 1) for x in options.split(",") if "=" in x).get("data") or results.settings.get("data")
        try:
            need(kind == "math", f"prove.py grades math alone, not {kind}")
            need(all({"completion", "gold"} <= {*x} for x in samples), "samples.jsonl has no completions or golds")
            given = read_rows(data) if data and Path(data).is_file() else []
            graded = graded_math(
                samples, dict(zip(unique_keys(given), given, strict=True)), seconds / len(results.samples)
            )
        except (UserError, OSError, KeyError, TypeError, ValueError) as error:
            proof.not_measured.append(f"{results.name}, {label}: scores were not computed again: {error}")
            clauses.append(f"scores of {label} were not computed again ({error})")
            continue
        wrong = []
        for sample, name, scores in graded:
            stored, possible = sample["metrics"].get(name), [x for x in scores if x is not None]
            if stored is not None and possible and all(abs(stored - x) > 1e-6 for x in possible):
                text = f"{str(sample['completion'])[-60:]!r}, gold {sample['gold']!r}, has {name} {stored}"
                wrong.append(f"row {sample['key']}: {text}, math_grader.py {possible[0]}")
        again = f"{len(graded)} scores of {label} were computed again from the completions by math_grader.py"
        clauses.append(f"{again}, {len(wrong)} differ")
        proof.findings += [f"{results.name}, {label}, {text}" for text in wrong[:3]]
        if len(wrong) > 3:
            proof.find(f"{results.name}, {label}: {len(wrong) - 3} more scores are not those of their completions")
    return "; ".join(clauses)


def grade_other(proof, results, seconds: float) -> str:
    """Grade another program's samples by math_grader.py where golds are numbers; returns the outcome as a clause.

    Full marks are a finding if the completion has numbers, but not the gold one.
    """
    metric, gradable, same, wrong = results.metrics[0], {}, 0, []
    samples = [x for row in results.samples[results.task].values() for x in row if x["metrics"].get(metric) in (0, 1)]
    for sample in samples:
        gold = str(sample["gold"]).rpartition("####")[2].strip().lstrip("$").replace(",", "")
        if sample["completion"] and NUMBER.fullmatch(gold):
            gradable[id(sample)] = float(gold)
    if not gradable or 2 * len(gradable) < len(samples):
        has_texts = any(x["completion"] for x in samples)
        why = "too few rows have one and a gold number"
        return f"completions of {results.file.name} were not graded: {why}" if has_texts else ""
    graded = graded_math([sample for sample in samples if id(sample) in gradable], {}, seconds)
    for x, _, scores in graded:
        score, numbers = x["metrics"][metric], [*map(float, NUMBER.findall(x["completion"].replace(",", "")))]
        same += score in scores
        if score == 1 and 1 not in scores and numbers and gradable[id(x)] not in numbers:
            text = f"{x['completion'][-60:]!r} has {metric} 1, but lacks its gold {x['gold']}"
            wrong.append(f"{results.name}, row {x['key']}: {text}")
    proof.findings += wrong[:3] + ([f"{results.name}: {len(wrong) - 3} more rows like these"] if len(wrong) > 3 else [])
    return f"math_grader.py scores {same} of {len(graded)} completions as {results.file.name} does"


# ----------------------------------------------------------- evaluation proof (src/programs/prove/evaluation_proof.py)

MAIN_METRICS = ("verified", "passed", "score", "acc")  # the first of these stands in the sentences
TOLERANCE = 1e-9  # relative for numbers above 1, else absolute


class Results:
    """One model's results.json, and the samples.jsonl beside it: {task: {row's key: samples}}."""

    def __init__(self, file: Path):
        report = read_report(str(file))
        self.file, self.tasks, self.settings, self.samples = file, report["tasks"], report.get("settings") or {}, {}
        self.model, self.name, self.doubts = "", str(file), {}
        try:
            lines = (file.parent / "samples.jsonl").read_text(encoding="utf-8").splitlines()
            for sample in map(json.loads, filter(str.strip, lines)):
                self.samples.setdefault(sample["task"], {}).setdefault(sample["key"], []).append(sample)
        except (OSError, ValueError, KeyError, TypeError) as error:
            got = f"got {file} whose samples.jsonl cannot be read ({error!r})"
            raise UserError(f"{got}; expected it beside, as evaluation.py writes it") from None


def results_files(path: Path) -> list[Path]:
    """A path's results.json of evaluation.py, or those of before/ and after/ in it; [] if there is none."""
    if path.is_file():
        return [path] if path.name == "results.json" and is_ours(path) else []
    one, pair = path / "results.json", [path / name / "results.json" for name in ("before", "after")]
    return [one] if is_ours(one) else [file for file in pair if is_ours(file)]


def is_ours(file: Path) -> bool:
    """Whether a results.json has tasks, or samples.jsonl beside it; other programs use that name, too."""
    if not file.is_file():
        return False
    return (file.parent / "samples.jsonl").is_file() or '"tasks"' in file.read_text(encoding="utf-8", errors="replace")


def column_of(metric: str, sample: dict) -> str:
    """The sample score behind a metric: for pass@k `passed`, `verified`, or a conversation's `accuracy`."""
    passes = next((name for name in ("passed", "verified") if name in sample["metrics"]), "accuracy")
    return passes if metric.startswith("pass@") else metric


def row_value(samples: list[dict], metric: str) -> Fraction | str | None:
    """A row's value: the mean over its samples, or pass@k; None if it does not apply, "" if samples lack the score."""
    column, (_, at, k) = column_of(metric, samples[0]), metric.partition("@")
    if any(column not in sample["metrics"] for sample in samples) or (at and not k.isdecimal()):
        return ""
    scores = [Fraction(x) for sample in samples if (x := sample["metrics"][column]) is not None]
    if not scores or not at:
        return sum(scores) / len(scores) if scores else None
    return pass_at(scores, int(k)) if len(scores) >= int(k) else None


def differs(stated, counted) -> bool:
    """Whether a stated number is not the counted one; nan always differs."""
    if stated is None or counted is None:
        return stated is not counted
    return not abs(stated - counted) <= TOLERANCE * max(1.0, abs(counted))


def recount_metric(metric: str, result: dict, rows: dict[str, list[dict]], find) -> dict | None:
    """Recount a metric from the samples, None if they lack it; `find` is told where results.json differs."""
    by_key = {key: row_value(rows[key], metric) for key in result["keys"] if key in rows}
    values, stated, stored = [*by_key.values()], result["metrics"][metric], result["values"][metric]
    if "" in values or stored["bottom"] is not None or stored["exp"]:  # no mean over rows, such as a perplexity
        return None
    figures = share_figures(by_key, stored["higher_is_better"])
    tops, n, interval = stored["top"], figures["n"], figures["ci95"] if figures["interval"] == "Wilson" else None
    wrong = sum(differs(*pair) for pair in zip(tops, values, strict=False)) + abs(len(tops) - len(values))
    if wrong:
        find(f"{metric}: {wrong} of {len(tops)} stored values are not those of samples")
    if differs(stated["value"], figures["value"]):
        find(f"{metric}: results.json says {stated['value']}, its samples give {figures['value']} on {n} rows")
    if stated["n"] != n or stated["of"] != len(result["keys"]):
        find(f"{metric}: results.json says {stated['n']} of {stated['of']} rows, samples are {n}")
    given = stated["ci95"] or [None, None]
    if interval and any(differs(x, y) for x, y in zip(given, interval, strict=True)):
        find(f"{metric}: results.json has the interval {given}, Wilson's formula gives {interval}")
    return figures


def recount(results: Results, proof: Proof) -> dict:
    """{(task, metric): recounted figures} of one model; findings about missing and repeated samples."""
    recounted = {}
    for task, result in results.tasks.items():
        rows = results.samples.get(task, {})
        keys, twice = {*result["keys"]}, sum(len({s["sample"] for s in row}) != len(row) for row in rows.values())
        counts = {"have no sample": len(keys - rows.keys()), "of samples are not counted": len(rows.keys() - keys)}
        for text, count in (counts | {"have a sample twice": twice}).items():
            if count:
                proof.find(f"{results.name}, {task}: {count} rows {text}")

        def find(text: str, task=task) -> None:
            proof.find(f"{results.name}, {task} {text}")

        for metric in result["metrics"]:
            figures = recount_metric(metric, result, rows, find)
            if figures is None:
                proof.not_measured.append(f"{results.name}, {task} {metric}: it is no mean of scores in the samples")
            else:
                recounted[task, metric] = figures
    return recounted


def prove_evaluation(path: Path, all_results: list, unreadable: list[str], seconds: float) -> Proof:
    """Recount the results of evaluation.py or of others, of one model or of two that were compared.

    Args:
        unreadable: findings about files that could not be read.
        seconds: time for computing scores again.
    """
    proof, models = Proof("evaluation", str(path), findings=unreadable), {}
    is_other, share = isinstance(all_results[0], OtherResults), seconds / len(all_results)
    recount_it, grade_it = (recount_other, grade_other) if is_other else (recount, regrade)
    try:
        recounts = [recount_it(results, proof) for results in all_results]
        differences = len(proof.findings)
        again = [grade_it(proof, results, share) for results in all_results]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if is_other:
            raise
        got = f"got {path} with tasks that cannot be read ({error!r})"
        raise UserError(f"{got}; expected results.json and samples.jsonl as evaluation.py writes them") from None
    said = "results.json"
    if is_other:
        said = f"{sum(stated_value(x, m) is not None for x in all_results for m in x.metrics)} stated figures"
    describe_results(proof, all_results, recounts, f"{differences} differences from {said} were found", again)
    for results, recounted in zip(all_results, recounts, strict=True):
        of_folders = len(all_results) > 2 and not results.model
        model = results.file.parent if of_folders else results.model or results.file
        models.setdefault(model, []).append((results, recounted))
    if len(models) == 2 and all(recounts):
        one, other = models.values()
        pairs = [(a, b, task) for a, _ in one for b, _ in other for task in a.samples if task in b.samples]
        proof.findings += [fault for pair in pairs for fault in pair_faults(*pair)]
        if any(a.samples[task].keys() & b.samples[task].keys() for a, b, task in pairs):
            sides = [{k: x for _, figures in side for k, x in figures.items()} for side in (one, other)]
            compare(proof, None if is_other else path / "comparison.json", sides)
            test = proof.figures["compared"].get(" ".join(main_metric(sides[0])), {})
            if is_other and len(all_results) == 2 and test.get("test") == "exact McNemar":
                compare_stated_p(all_results, test, proof)
        else:
            proof.skip("The difference of the two models", "they have no common rows")
    return proof


def describe_results(proof: Proof, all_results: list, recounts: list[dict], differences: str, again: list[str]) -> None:
    """Add the sentences on all results, with what was recounted for them and computed `again`."""
    rows = [row for results in all_results for of_task in results.samples.values() for row in of_task.values()]
    total, samples = sum(map(len, recounts)), [sample for row in rows for sample in row]
    if not all(recounts):
        proof.is_open = True
        proof.skip("Whether the metrics follow from the samples", "none is a mean of scores in samples.jsonl")
        return
    counted = f"{total} metrics were recounted from the scores of {len(samples)} stored samples in {proof.thing}"
    proof.say("; ".join([counted, differences, *dict.fromkeys(filter(None, again))]) + ".")
    clauses = []
    for results, recounted in zip(all_results, recounts, strict=True):
        main = main_metric(recounted)
        figures = recounted[main]
        interval = f" (95 % {figures['interval']} interval {shown(figures['ci95'])})" if figures["ci95"] else ""
        clauses.append(f"{results.name}: {' '.join(main)} {shown(figures['value'])}{interval} on {figures['n']} rows")
    proof.say(f"{'; '.join(clauses)}.")
    proof.figures["metrics"] = {
        results.name: {" ".join(k): {n: v[n] for n in ("value", "n", "ci95", "interval")} for k, v in recounted.items()}
        for results, recounted in zip(all_results, recounts, strict=True)
    }
    for figure, doubt in {figure: x for results in all_results for figure, x in results.doubts.items()}.items():
        proof.is_open = True
        proof.skip(figure, doubt)
    describe_unfinished(proof, samples, main_metric(recounts[0]))
    describe_rows(proof, all_results[-1], main_metric(recounts[-1]))


def main_metric(recounted: dict) -> tuple[str, str]:
    """The (task, metric) that the sentences quote."""
    return min(recounted, key=lambda pair: pair[1] not in MAIN_METRICS)


def describe_unfinished(proof: Proof, samples: list[dict], main: tuple[str, str]) -> None:
    """Report how many texts were cut off at the token limit; it is a finding if some have full marks."""
    finished = [x for x in samples if x["task"] == main[0] and x.get("finish")]
    pairs = [(x["finish"] == "length", x["metrics"].get(column_of(main[1], x)) or 0) for x in finished]
    cut, full = sum(is_cut for is_cut, _ in pairs), pairs.count((True, 1)) * all(x <= 1 for _, x in pairs)
    proof.figures |= {"unfinished_texts": cut, "unfinished_texts_with_full_marks": full}
    if not finished:  # the task scores given texts
        return
    text = f"{cut} of {len(finished)} texts were cut off at the token limit; {full} of these have full marks"
    proof.say(f"{text}.")
    if full:
        proof.find(f"{text}: unfinished texts count as right; try a larger --max_new_tokens")


def describe_rows(proof: Proof, results: Results, main: tuple[str, str]) -> None:
    """Quote two rows to read: the highest score and the lowest."""
    rows = [row[0] for row in results.samples[main[0]].values()]
    name = column_of(main[1], rows[0])
    rows = sorted(rows, key=lambda sample: -(sample["metrics"].get(name) or 0))
    picked = [rows[0], rows[-1]] if len(rows) > 1 else rows
    proof.figures["rows"] = [
        {key: sample.get(key) for key in ("prompt", "completion", "gold", "finish", "metrics")} for sample in picked
    ]
    pairs = [(x.get("completion") or x.get("extracted"), x["metrics"].get(name)) for x in picked]
    if any(text for text, _ in pairs):
        proof.say(f"Two of its rows: {'; '.join(f'{str(text)[-80:]!r} scores {score}' for text, score in pairs)}.")


def compare(proof: Proof, file: Path | None, recounts: list[dict]) -> None:
    """Recompute the paired tests of two models on their common rows, also those in a `file`."""
    stated = json.loads(file.read_text(encoding="utf-8"))["tasks"] if file and file.is_file() else {}
    proof.figures["compared"], main = {}, " ".join(main_metric(recounts[0]))
    for task, metric in [pair for pair in recounts[0] if pair in recounts[1]]:
        before, after = (recounted[task, metric]["values"] for recounted in recounts)
        both = [(x, after[key]) for key, x in before.items() if key in after and not REPEATED.fullmatch(key)]
        pairs = [pair for pair in both if None not in pair]
        if recounts[0][task, metric]["higher_is_better"] is None or len(pairs) < 2:
            continue
        if other_scale(*zip(*pairs, strict=True)):
            proof.is_open = True
            proof.skip(f"The difference of {task} {metric}", OTHER_SCALE)
            continue
        if f"{task} {metric}" == main and (lacking := unpaired_scores(both)):
            proof.say(f"{main}: {lacking}.")
        figures = paired_difference(pairs)
        proof.figures["compared"][f"{task} {metric}"] = figures
        test = stated.get(task, {}).get(metric)
        same = [*figures] if figures["test"] == "exact McNemar" else ("difference", "rows")
        for name, value in ((name, figures[name]) for name in same if test and name != "test"):
            given, recomputed = (x if isinstance(x, list) else [x] for x in (test[name], value))
            if any(differs(x, y) for x, y in zip(given, recomputed, strict=True)):
                proof.find(f"{file}, {task} {metric}: {name} is {test[name]}, recomputed {value}")
    if x := proof.figures["compared"].get(main):
        one, other = ({*recounted[main_metric(recounts[0])]["values"]} for recounted in recounts)
        interval = "t" if x["test"] == "paired t" else "Bonett-Price"
        test = f", {x['test']} p = {x['p']:.2g}, 95 % {interval} interval {shown(x['ci95'])}" if x["ci95"] else ""
        up, down = ends_of(recounts[0][main_metric(recounts[0])]["higher_is_better"])
        counts = f"{x['better']} rows {up}, {x['worse']} {down} of {x['rows']}"
        counts += f" common ones ({len(one ^ other)} are in only one of the two)" if one ^ other else ""
        proof.say(f"The difference of {main} is {x['difference']:+.3f}: {counts}{test}, recomputed.")


def paired_difference(pairs: list[tuple]) -> dict:
    """The test of a difference on common rows: exact McNemar for 0 and 1, a sign test for one size, else a paired t."""
    changes, n = [round(b - a, 12) for a, b in pairs], len(pairs)  # 0.1 + 0.2 is 0.3
    up, down = sum(x > 0 for x in changes), sum(x < 0 for x in changes)
    figures = {"difference": float(sum(b - a for a, b in pairs) / n), "rows": n, "better": up, "worse": down}
    if {x for pair in pairs for x in pair} <= {0, 1}:
        return figures | {"test": "exact McNemar", "p": exact_p(up, down), "ci95": difference_interval(up, down, n)}
    if len(sizes := {*map(abs, changes)} - {0}) == 1:
        size = float(sizes.pop())
        ends = [size * end for end in difference_interval(up, down, n)]
        return figures | {"test": "exact sign", "p": exact_p(up, down), "ci95": ends}
    tested = mean_test(changes)
    return figures | {"test": "paired t", "p": tested["p"], "ci95": tested["ci95"]}


# ------------------------------------------------------------------- reward proof (src/programs/prove/reward_proof.py)

TESTS = ("tests", "cases", "test_list", "test_cases", "test", "unit_tests", "asserts", "input_output")
TRUTHS = ("ground_truth", "answer")  # which may be tests, too
CALL = {"args": [2], "expected": 4, "function": "f", "fn_name": "f", "inputs": [[2]], "outputs": [4]}  # f(2) == 4
OUTPUTS = ("output", "outputs", "expected_output", "expected", "stdout")
FED = dict.fromkeys(("input", "inputs", "stdin"), "2\n") | dict.fromkeys(OUTPUTS, "4\n")  # f(2) == 4 on stdin, stdout
FED_MAIN = "print(f(int(input())))"  # added to a program that is judged by what it prints
TOGETHER_S, ALONE_S = 40.0, 25.0  # limits for a call with all programs, and with one
HARMFUL = ("file deleted", "file changed", "files left behind", "process left behind", "network")  # pass, but do harm
AS_SAMPLE_REWARD = '''\
"""Wrap a reward of verl's form in this bundle's form, so that reward_preflight.py can call it."""

import asyncio
import inspect
import runpy

FUNCTION = runpy.run_path("{file}")["{name}"]
GOLD = ("ground_truth", "answer", "solution", "gold", "target", "label")  # the first column that a row has counts


def as_sample_reward(prompt, completion, **columns):
    """Call the reward as verl's reward manager does; of a dict, "score" counts."""
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    gold = (columns.get("reward_model") or {}).get("ground_truth")
    if gold is None:
        gold = next((columns[name] for name in GOLD if name in columns), None)
    given = {"data_source": columns.get("data_source", ""), "solution_str": text, "ground_truth": gold}
    given["extra_info"], taken = columns.get("extra_info") or {}, inspect.signature(FUNCTION).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        given = {name: value for name, value in given.items() if name in taken}
    score = FUNCTION(**given)
    score = asyncio.run(score) if inspect.iscoroutine(score) else score
    return score["score"] if isinstance(score, dict) else score
'''
FAILED = ("hung", "died", "raised", "malformed", "not_finite")  # failures that reward_preflight.py counts
NONSENSE = ("empty", "whitespace", "unicode_junk", "keyword_stuffing", "very_long")  # probes of reward_preflight.py
ANSWER_FORMS = ("<answer>{}</answer>", "\\boxed{{{}}}", "#### {}", "Answer: {}", "```python\n{}\n```", "{}")
ESCAPE = (  # reaches `open` even if eval gets no builtins
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'catch_warnings'][0]()"
    "._module.__builtins__['open']"
)
GOLD_NAMES = ("target", "answer", "final_answer", "solution", "gold", "label")  # in a ground truth that is a dictionary
OURS = {"completions", "prompt", "completion"}  # one of which our trainers pass
COMPLETION_NAMES = {"completions", "completion", "completion_ids"}
VERL_NAMES = {"data_source", "solution_str", "ground_truth", "extra_info"}  # verl's reward managers pass these by name


def fed_test(tests, single: bool = False):
    """Replace calls or input/output tests by the attacks' single test, in the same form; None for other tests."""
    if isinstance(tests, str):
        with contextlib.suppress(ValueError):
            tests = fed_test(json.loads(tests), single)
            return json.dumps(tests) if tests else None
    if single and isinstance(tests, list) and len(tests) == 2:  # texts on stdin and stdout, or a call
        return ["2\n", "4\n"] if {*map(type, tests)} == {str} else [[2], 4] if isinstance(tests[0], list) else None
    if isinstance(tests, list) and tests:
        return [test] if (test := fed_test(tests[0], single=True)) else None
    if isinstance(tests, dict) and (tests.get("fn_name") or {"args", "expected"} <= {*tests}):
        return tests | {name: value for name, value in CALL.items() if name in tests}
    pair = {x: FED[x] for x in tests if x in FED} if isinstance(tests, dict) else {}
    lists = {x: [text] if isinstance(tests[x], list) else text for x, text in pair.items()}
    return tests | lists if len({*pair.values()}) == 2 else None


def attacked_row(row: dict, names: set[str]) -> dict | None:
    """The row with its tests replaced by the attacks' test, in the same form; None without tests among `names`."""
    truth = row.get("reward_model")
    if isinstance(truth, dict) and (inner := attacked_row(truth, {*truth})):
        return row | {"reward_model": inner}
    for name in (*TESTS, *TRUTHS):
        value, test = row.get(name), TEST_OF_ATTACKS
        if name in names and (fed := fed_test(value)):
            return row | {name: fed} | ({} if "4\\n" in str(fed) else {"entry_point": "f"})
        if name not in names or "assert " not in json.dumps(value, default=str):
            continue
        with contextlib.suppress(ValueError, TypeError):
            test = json.dumps([test]) if isinstance(json.loads(value), list) else test
        if "def check(" in str(value):
            test = f"def check(candidate):\n    {test.replace('f(', 'candidate(')}"
        fixed = {column: text for column, text in (("entry_point", "f"), ("setup", "")) if column in row}
        return row | {name: test if isinstance(value, str) else [test]} | fixed
    return None


def prove_against_attacks(proof: Proof, spec: str, row: dict) -> None:
    """Call a reward on right and hostile programs, and report which hostile ones were paid or did harm."""
    (path, function, _), programs = spec_parts(spec), attack_programs()
    if any("4\\n" in str(row.get(name)) for name in (*TESTS, *TRUTHS, "reward_model")):  # tests of input and output
        programs = [(kind, about, code and f"{code}\n\n{FED_MAIN}") for kind, about, code in programs]

    def outcome(codes: list[str], seconds: float) -> dict:
        return called_on_programs(str(Path(path).resolve()), function, row, codes, seconds)

    names, codes = [about for _, about, _ in programs], [code for *_, code in programs]
    hostile = [about for kind, about, _ in programs if kind == "hostile"]
    together = outcome(codes, TOGETHER_S)
    scores = dict(zip(names, together.get("scores", ()), strict=False))  # none if a program ended them all
    outcomes = {name: {"scores": [score], "harm": together["harm"]} for name, score in scores.items()}
    if not outcomes or together["harm"] or any(outcomes[x]["scores"][0] for x in hostile):  # find out which
        with ThreadPoolExecutor(4) as pool:
            outcomes = dict(zip(names, pool.map(lambda code: outcome([code], ALONE_S), codes), strict=True))
    scores = {name: x.get("scores", [0.0])[0] for name, x in outcomes.items()}
    wrong, through = scores[hostile[0]], {}
    if scores["plain"] <= wrong:
        proof.skip("How it stands attacks", "a right and a wrong program with the test f(2) == 4 get the same score")
        return
    for name in hostile:
        x = outcomes[name]
        problems = [*x.get("harm", ()), *(x[how] for how in ("ended", "raised") if how in x)]
        if name not in HARMFUL and scores[name] > wrong:
            problems.append(f"it is paid {scores[name]:g}")
        if problems:
            through[name] = "; ".join(problems)
    proof.figures["attacks"] = {"tried": hostile, "got_through": through}
    proof.findings += [f"attack {name}: {problem}" for name, problem in through.items()]
    paid = scores["a library"] > wrong
    libraries = ", and so is one with an import" if paid else f"; one with an import gets {wrong:g}"
    proof.say(
        f"{len(hostile) - len(through)} of {len(hostile)} hostile and wrong programs were contained, each called "
        f"through this very reward on this machine (user {os.getuid()}); got through: {', '.join(through) or 'none'}. "
        f"A plain right program is paid{libraries}."
    )


def prove_reward(spec: str, data: str, flags: list[str], seconds: float) -> Proof:
    """Run reward_preflight.py on a reward and the rows of `data`, and hostile programs if the rows have tests."""
    file, name, _ = spec_parts(spec)
    proof, function, rows = Proof("reward", spec), find_reward(spec)[0], read_rows(data)
    parameters = {} if isinstance(function, list) else inspect.signature(function).parameters
    names, takes_any = {*parameters}, any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    with tempfile.TemporaryDirectory() as folder:
        tried, taken, read = spec, {*rows[0]}, data
        if not names & OURS and {"solution_str", "ground_truth"} <= names:
            adapter = Path(folder, "as_sample_reward.py")
            adapter.write_text(with_values(AS_SAMPLE_REWARD, file=repr(str(Path(file).resolve())), name=repr(name)))
            tried = f"{adapter}:as_sample_reward"
        elif names and not takes_any:
            taken &= names
        attacked = attacked_row({"prompt": "", **rows[0]}, taken)
        describe_forms(proof, names, takes_any, name)
        is_verl = isinstance(rows[0].get("reward_model"), dict) and not attacked  # it keeps gold answers there
        is_free = not any(flag.startswith("--profile") for flag in flags)
        if pays_for_form := is_free and reads_completions_alone(function, parameters):
            rows, flags = [{"answer": str(i), **row} for i, row in enumerate(rows)], ["--profile", "format", *flags]
            form = "its form was checked (--profile format), not that right answers are paid more than wrong ones"
            proof.say(f"It reads completions alone, no answers: {form}.")
        if is_verl or pays_for_form:
            read = str(Path(folder, "rows.jsonl"))
            rows = [with_ground_truth(row) for row in rows] if is_verl else rows
            Path(read).write_text("".join(json.dumps(x, default=str) + "\n" for x in rows), encoding="utf-8")
        try:
            report = preflight_of(tried, read, flags, seconds)
            column = dict(itertools.pairwise(flags)).get("--prompt_column", "prompt")
            first = [{"prompt": prompt_of(rows[0], column, data), "columns": rows[0]}]
            truth = rows[0].get("ground_truth")
            is_part = isinstance(truth, dict) and len(truth) > 1  # no answer by itself: a target, and numbers for it
            if is_unpaid(report, flags, is_part):
                skip_gold(proof, report, is_part)
            describe_checks(proof, report, data)
        except UserError as error:
            if not attacked or "reference completion" not in str(error):
                raise UserError(str(error).replace(read, data)) from None
            report = {"findings": []}
            proof.skip("What gold answers are paid", "the rows have tests and no solutions")
        if attacked:
            prove_against_attacks(proof, tried, attacked)
        elif taken & {*TESTS}:
            proof.skip("How it stands attacks", "the tests are no assert statements, calls or input and output")
        elif not any(report["functions"][0][kind] for kind in FAILED) and runs_answers(tried, first):
            proof.find("it runs what stands in the place of an answer as Python: a model can do what this user can")
    proof.findings += [finding.replace(read, data) for finding in failures_of(report)]
    return proof


def reads_completions_alone(function, parameters) -> bool:
    """Whether a reward takes and reads neither prompts nor columns of the rows; False without source."""
    try:
        source = inspect.getsource(function if inspect.isroutine(function) else type(function).__call__)
        tree = ast.parse(textwrap.dedent(source))
    except (OSError, TypeError, SyntaxError):
        return False
    read = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name)}
    others = {name for name, p in parameters.items() if name in read or p.kind is not p.VAR_KEYWORD} - COMPLETION_NAMES
    return bool(COMPLETION_NAMES & read) and not others - ({"prompt", "prompts"} - read)


def with_ground_truth(row: dict) -> dict:
    """A row in verl's form with its ground truth as a column; the answer in one such as {"target": 65} as another."""
    truth = (row.get("reward_model") or {}).get("ground_truth")
    answers = [truth[name] for name in GOLD_NAMES if name in truth] if isinstance(truth, dict) else []
    return row | {"ground_truth": truth} | ({"final_answer": answers[0]} if answers else {})


def is_unpaid(report: dict, flags: list[str], is_part: bool) -> bool:
    """Whether no guessed form of gold answers is fully paid in any row, and no failure explains that.

    `is_part`: what is taken for a gold answer may be a part of the question, so that wrong ones may get as much.
    """
    named = any(flag.startswith(("--gold", "--full_score", "--full-score")) for flag in flags)
    gold, works = report["gold"], not any(report["functions"][0][kind] for kind in FAILED)
    checks = {x["check"] for x in report["findings"]}
    none_paid = (is_part or "probes" in checks) and not gold["full_marks"] and "{" in gold["variant"]
    return none_paid and works and not named and "sign" not in checks


def skip_gold(proof: Proof, report: dict, is_part: bool) -> None:
    """Say that gold answers were not measured, and drop the findings that depend on them."""
    proof.is_open = True
    forms = "'{answer}', '\\boxed{answer}', '<answer>…', '#### …', 'Answer: …'"
    advice = "try -- --gold_template with the form that it pays, such as 'Result: {answer}'"
    advice += ", or --gold_column with right completions" if is_part else ""
    proof.skip(
        "What gold answers are paid",
        f"no usual form that reward_preflight.py tries ({forms}, …) is paid in any row; {advice}",
    )
    dropped = {"gold", "probes", *(x["name"] for x in report["probes"] if is_part)}
    report["findings"] = [x for x in report["findings"] if x["check"] not in dropped]


def describe_forms(proof: Proof, names: set[str], takes_any: bool, name: str) -> None:
    """Say which trainers can call a reward with these parameters; if none can, that is a finding."""
    if not names:
        proof.skip("The form", f"{name} is a list, or has no parameters that can be read")
        return
    batch = "completions" in names
    trl = "" if batch and takes_any else "no **kwargs, and TRL passes every column" if batch else "it scores no batch"
    missing = {"solution_str", "ground_truth"} - names or (set() if takes_any else VERL_NAMES - names)
    verl = f"it takes no {', '.join(sorted(missing))}" if missing else ""
    ours = "" if names & OURS else "it takes no completion or completions"
    forms = {"TRL": trl, "verl": verl, "ours": ours}
    proof.figures["forms"] = {trainer: not why for trainer, why in forms.items()}
    words = [f"{trainer} {'can' if not why else f'cannot ({why})'}" for trainer, why in forms.items()]
    proof.say(f"Which trainers can call {name}, by its parameters: {'; '.join(words)}.")
    if all(forms.values()):
        proof.find(f"neither TRL, verl nor this bundle can call {name}: {'; '.join(words)}")


def describe_checks(proof: Proof, report: dict, data: str) -> None:
    """Add the sentences on gold answers, nonsense and repeated scoring."""
    gold, contract = report["gold"], report["contract"]
    probes = {line["name"]: line for line in report["probes"]}
    paid = {name: probes[name]["worst"] for name in NONSENSE if probes.get(name, {}).get("worst") is not None}
    proof.figures |= {"gold": {key: gold[key] for key in ("rows", "variant", "full_marks", "mean", "none")}}
    proof.figures |= {"nonsense_worst_share": paid, "contract": contract, "probes": report["probes"]}
    most = f"{max(paid.values()):.0%} of gold's score" if paid else "nothing that could be compared"
    count = sum(probes[name]["completions"] for name in paid)
    more = f"; {gold['none']:.1%} got None and do not count" if gold["none"] else ""
    if not proof.is_open:
        proof.say(
            f"reward_preflight.py gave {gold['full_marks']:.1%} of {gold['rows']} gold answers of {data} full marks"
            f"{more} (written {gold['variant']!r}); of {count} nonsense completions ({', '.join(paid)}), the best got "
            f"{most}."
        )
    names = {"deterministic": "twice", "order_independent": "in another order", "batch_independent": "alone"}
    names["state_independent"] = "in a new process"
    words = [f"{name} {'yes' if contract[test] else 'no'}" for test, name in names.items() if test in contract]
    function = report["functions"][0]
    proof.figures |= {key: function[key] for key in ("p50_ms", "p99_ms")}
    if function["p50_ms"] is None:
        proof.skip("Whether the same completions get the same scores", "no gold completion got a score")
        return
    took = f"takes {function['p50_ms']:g} ms (99 % within {function['p99_ms']:g} ms)"
    slow = "".join(f"; slow: {x['message']}" for x in report["findings"] if x["check"] == "latency")
    proof.say(f"The same completions get the same scores: {', '.join(words)}; a gold one {took}{slow}.")


def runs_answers(spec: str, rows: list[dict]) -> bool:
    """Whether a reward runs a model's answers as Python, such as by `eval`: whether an answer can create a file."""
    with tempfile.TemporaryDirectory() as folder:
        call = f"({str(Path(folder, 'made'))!r}, 'w').close()"
        for code, form in itertools.product((f"open{call}", ESCAPE + call), ANSWER_FORMS):
            with contextlib.suppress(Exception):  # a reward may fail on such a text
                Reward([spec])(rows, [form.format(code)], [[1]])
        return bool([*Path(folder).iterdir()])


# --------------------------------------------------------------------- four places (src/programs/prove/four_places.py)

CAUSE = "try setting every attribute in reset, on self, and taking nothing from chance, time or a class attribute"


def in_ppo_train(module, spec: str, s: ScriptedPlayer) -> list[float]:
    """Returns of ppo_train.py's rollout."""
    engine = SimpleNamespace(generate=lambda prompts, noise: [(ids, [0.0] * 2) for ids in s.continued(prompts)])
    models = SimpleNamespace(tokenizer=s.texts, eos_ids=[0])
    config = SimpleNamespace(max_turns=s.setup.limits.turns)
    samples = module.converse(s.setup, config, models, engine, module.Reward(s.rewards), s.rows, None, {})
    return [sample["score"] for sample in samples]


def in_grpo_train(module, spec: str, s: ScriptedPlayer) -> list[float]:
    """Returns that grpo_train.py hands to TRL for conversations played in its rollout_func."""
    scorer, blank = module.Scorer(s.rows, s.rewards), [""] * len(s.rows)
    module.let_environments_score(SimpleNamespace(tool_format=""), s.setup.environments, scorer)
    trainer = SimpleNamespace(use_vllm=False, _generate_single_turn=lambda ids, *_: (s.continued(ids), None))
    numbers, totals = range(len(s.rows)), [0.0] * len(s.rows)
    ids = module.rollout_function(s.setup, scorer)(list(map(str, numbers)), trainer)["completion_ids"]
    for name, reward in zip(scorer.functions, scorer.for_trl(), strict=True):
        for i, score in enumerate(reward(blank, blank, completion_ids=ids, row=numbers)):
            totals[i] += scorer.weights[name] * (score or 0.0)
    return totals


def in_evaluation(module, spec: str, s: ScriptedPlayer) -> list[float]:
    """Scores of evaluation.py's conversations."""

    def generate(requests: list, done, numbers: list[int]) -> None:
        for place, number in enumerate(numbers):
            *ids, end = s.say(number)
            done(place, {"ids": ids, "end": [end]})

    task = object.__new__(module.EnvironmentTask)
    task.reward = module.Reward(s.rewards)
    model = SimpleNamespace(tokenizer=s.texts, eos_ids=[0], turns=lambda: generate)
    given = SimpleNamespace(max_new_tokens=1), s.setup, model, [row | {"sample": 0} for row in s.rows]
    records = task.records(*given, SimpleNamespace(rows={}, hits=0, add=lambda *_: None))
    return [record["metrics"]["score"] for record in records]


def in_verl(module, spec: str, s: ScriptedPlayer) -> list[float]:
    """Scores of the agent loop that verl_train.py gives to verl, with all conversations at once."""
    tools = {kind.name: kind.tools for kind in s.setup.environments.kinds.values()}
    environment = {"file": spec, "tools": tools, "limits": vars(s.setup.limits), "form": "hermes"}
    job = {"environment": environment, "rewards": s.rewards, "reward_limits": (), "columns": []}
    player = module.Player(job, SimpleNamespace(chat_template="-", apply_chat_template=len), [0])
    player.setup = s.setup  # which has texts in place of a tokenizer

    async def one(number: int) -> float:
        async def sample(ids: list[int]) -> tuple[list[int], list[float]]:
            return s.say(number), [0.0] * 2

        return player.scores(*await player.play(s.rows[number], sample), {})[0]

    async def every() -> list[float]:
        return await asyncio.gather(*map(one, range(len(s.rows))))

    return asyncio.run(every())


PLACES = {"ppo_train": in_ppo_train, "grpo_train": in_grpo_train, "evaluation": in_evaluation, "verl_train": in_verl}


def places(spec: str, rewards: list[str], limits, plays: list[dict]) -> dict:
    """{program: function that plays the answers there and gives their returns}."""
    rows, scripts = [play["row"] for play in plays], [play["script"] for play in plays]

    def played(name: str) -> list[float]:
        module = import_file("script", name, str(BUNDLE / "scripts" / f"{name}.py"))
        scripted = ScriptedPlayer(load_environments(spec), rows, scripts, limits)
        scripted.rewards = rewards
        return PLACES[name](module, spec, scripted)

    return {f"{name}.py": functools.partial(played, name) for name in PLACES}


def compare_ways(proof: Proof, plays: list[dict], ways: dict) -> None:
    """Play the same answers in every way; add findings where returns differ from those of conversations alone."""
    returns, same = {}, []
    for name, play_there in ways.items():
        is_program = name.endswith(".py")
        try:
            returns[name] = play_there()
        except Exception as error:  # the environment may fail in another order or thread
            if is_program and isinstance(error, UserError):  # of the import: a script's own UserError is another class
                proof.skip(f"What {name} pays", str(error))
            else:
                proof.find(f"{name} fails: {type(error).__name__}: {str(error)[:200]}")
            continue
        wrong = [(play, x) for play, x in zip(plays, returns[name], strict=True) if abs(x - play["return"]) > 1e-9]
        if wrong:
            play, got = wrong[0]
            where = f"row {play['row']['number']}, policy {play['policy']}: {got:g}, alone {play['return']:g}"
            cause = "" if is_program else f"; {CAUSE}"
            proof.find(f"{name} pays {len(wrong)} of {len(plays)} conversations otherwise, such as {where}{cause}")
        elif is_program:
            same.append(name.removesuffix(".py"))
    proof.figures["returns"] = {"alone": [play["return"] for play in plays], **returns}
    proof.say(f"The same answers in {len(plays)} conversations are paid the same by {', '.join(same) or 'none'}.")


# --------------------------------------------------------- environment proof (src/programs/prove/environment_proof.py)

TURNS = 8  # of a conversation, unless --max_turns
GOLD_ROWS, ROWS, TRIAL_ROWS = 32, 8, 4  # rows for gold answers; for others; to choose gold's form
FULL_SHARE = 0.95  # share of full marks that counts as such, and of the rows whose gold answers must have them
ALLOWED = {
    "silence": 0.05,
    "nonsense": 0.05,
    "brackets": 0.05,
    "meaningless calls": 0.5,
    "several answers": 0.25,
}  # of full marks
TOOL_S = 6.0  # seconds for the tool calls of an answer, or for a reply
LOAD_S = 300.0  # seconds to import the environment
ANSWERS = ("answer", "final_answer", "label", "target", "ground_truth")  # columns with the answer
JUNK_TEXT = "Lorem qzx vwpt {[(<$\\\u202e\U0001f9ee jkh."
SAMPLE = {"integer": 1, "number": 1.0, "boolean": False, "array": [], "object": {}}
# defaults of a run's settings that the parts read
RUN = {"tool_format": "", "reward_timeout": 600.0, "reward_concurrency": 32, "reward_retries": 2}


def is_environment(file: Path, name: str) -> bool:
    """Whether a file's name makes environments: a class without __call__, a dictionary, a call without arguments."""
    member = getattr(import_file("reward", f"{file}:{name}", str(file)), name, None)
    if inspect.isclass(member):
        return not any("__call__" in vars(base) for base in member.__mro__)
    parameters = inspect.signature(member).parameters.values() if callable(member) else ()
    needs_none = all(p.default is not p.empty for p in parameters)  # `*args` and `**columns` have no default
    return isinstance(member, dict) or (callable(member) and needs_none)


def call_text(name: str, arguments: dict) -> str:
    """A tool call in the form of Hermes and Qwen, by which scripted answers are parsed."""
    body = json.dumps({"name": name, "arguments": arguments}).replace("<", "\\u003c")  # no tag inside a value
    return f"<tool_call>\n{body}\n</tool_call>"


def answer_text(value, where: str) -> str:
    """An answer of the column gold: a text, a call {"name", "arguments"}, or a list of calls."""
    if isinstance(value, str):
        return value
    calls = value if isinstance(value, list) else [value]
    named = calls and all(isinstance(x, dict) and isinstance(x.get("name"), str) for x in calls)
    need(named, f'{where}: got {str(value)[:80]!r}; expected a text, a call {{"name", "arguments"}} or several')
    return "".join(call_text(call["name"], call.get("arguments") or {}) for call in calls)


def as_typed(value, kind: str):
    """A column's value as a tool parameter's type wants it: text as a number, anything as a string."""
    if kind in ("integer", "number") and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return int(value) if kind == "integer" or re.fullmatch(r"-?\d+", value) else float(value)
    return str(value) if kind == "string" else value


def gold_scripts(columns: dict, kind, where: str) -> dict[str, list[str]]:
    """{form: script for full marks}: of the column gold, else of a tool that takes the answer, else of texts."""
    if (given := columns.get("gold")) is not None:
        return {"column gold": [answer_text(x, where) for x in (given if isinstance(given, list) else [given])]}
    scripts = {}
    for tool in kind.tools:
        name, parameters = tool["function"]["name"], tool["function"]["parameters"]
        required = parameters.get("required", [])
        if {*ANSWERS} & {*required} and all(columns.get(x) is not None for x in required):
            typed = {x: as_typed(columns[x], parameters["properties"][x].get("type")) for x in required}
            scripts[f"tool {name}({', '.join(required)})"] = [call_text(name, typed)]
    answer = answer_of(columns)
    if scripts or answer is None or not (kind.talks or not kind.tools):  # a text cannot call a tool
        return scripts
    return {form: [form.format(answer)] for form in ANSWER_FORMS}


def other_scripts(row: dict, kind, rows: list[dict]) -> dict[str, list[str]]:
    """{policy: script} of answers that earn nothing, and of calls with meaningless arguments."""
    scripts = {"silence": [""], "nonsense": [JUNK_TEXT], "brackets": ["(" * 100_000]}
    if kind.tools:
        calls = []
        for tool, text in itertools.product(kind.tools, ("nothing", "__import__('os')._exit(1)", {"a": [1]})):
            types = {x: p.get("type") for x, p in tool["function"]["parameters"]["properties"].items()}
            given = {
                x: (SAMPLE | {"string": text}).get(t if isinstance(t, str) else "string") for x, t in types.items()
            }
            calls.append(call_text(tool["function"]["name"], given))
        scripts["meaningless calls"] = calls
    elif answer := answer_of(row["columns"]):
        wrong = sorted({x for other in rows if (x := answer_of(other["columns"])) not in (None, answer)})
        scripts |= {"several answers": [f"{wrong[0]}, {answer}, {wrong[-1]}"]} if wrong else {}
    return scripts


def answer_of(columns: dict) -> str | None:
    return next((str(columns[name]) for name in ANSWERS if columns.get(name) is not None), None)


class Player:
    """Plays scripted conversations with an environment and the rewards beside it."""

    def __init__(self, spec: str, rewards: list[str], rows: list[dict], turns: int, note: Callable):
        self.note = note  # gets where it is, in words
        self.rewards = [full_spec(spec) for spec in rewards]
        self.environments, self.reward = load_scored(SimpleNamespace(environment=spec, reward=self.rewards, **RUN))
        check_environment_rows(self.environments, rows)
        self.reward.check_columns(rows[0])
        self.limits = PlayLimits(turns, 10**15, 1, TOOL_S)

    def kind_of(self, row: dict):
        return self.environments.kind_of(row["columns"])

    def returns(self, pairs: list[tuple], kinds: Environments | None = None) -> tuple[list[float], list]:
        """(Returns, conversations) of (row, script) pairs that are played together."""
        rows = [row for row, _ in pairs]
        player = ScriptedPlayer(kinds or self.environments, rows, [script for _, script in pairs], self.limits)
        talks = play(rows, player.setup, player.sample)
        scores = score_talks(player.setup, rows, talks, self.reward)
        weights = score_weights(self.reward, scores[0])
        return [sum(weights[k] * (x or 0.0) for k, x in of_talk.items()) for of_talk in scores], talks


def prove_environment(spec: str, data: str, flags: list[str], seconds: float) -> Proof:
    """`prove_played` in a process of its own, which an environment may end or never give back."""
    parser = argparse.ArgumentParser(prog="prove.py ENV.py:Class --data FILE --", allow_abbrev=False)
    parser.add_argument("--reward", action="append", default=[], metavar="FN", help="a reward beside the environment")
    parser.add_argument("--prompt_column", default="prompt", metavar="NAME", help="column with the prompt")
    parser.add_argument("--max_turns", type=int, default=TURNS, metavar="N", help="answers in a conversation")
    given, place, proof = parse_flags(parser, flags), "the import", Proof("environment", spec)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=send_proof, args=(theirs, given, spec, data))
    process.start()
    end = (heard := time.monotonic()) + LOAD_S
    try:
        while place and time.monotonic() < end and (process.is_alive() or ours.poll()):
            if ours.poll(0.05):
                (place, proof), heard = ours.recv(), time.monotonic()
                end = end if ", row " in place else heard + seconds  # libraries take their time to load
        is_late = process.is_alive()
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # and what the environment has started
        process.kill()
        process.join()
    if isinstance(proof, UserError):
        raise proof
    if place and not is_late:
        ended = f"died: in {place}, it ended its process (exit code {process.exitcode})"
        proof.find(f"{ended}; try running what a model writes in another process, as sandbox.py does")
    elif ", row " in place and time.monotonic() - heard > seconds / 4:
        proof.find(f"hung: {place} takes more than {seconds / 4:g} s; try methods that return; a tool has {TOOL_S:g} s")
    elif place:
        got = f"got {spec}, whose conversations take longer than {seconds:g} s ({place})"
        need(proof.findings, f"{got}; expected methods that return; try a larger --minutes")
        proof.skip("The rest", f"it takes longer than {seconds:g} s ({place})")
    return proof


def send_proof(connection, given: argparse.Namespace, spec: str, data: str) -> None:
    """Send pairs of where the environment is, "" at the end, and its proof so far, or what is wrong with the input."""
    os.setpgrp()
    os.dup2(2, 1)  # stdout is for the report
    proof = Proof("environment", spec)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            prove_played(proof, given, data, lambda place: connection.send((place, proof)))
    except UserError as error:
        proof = UserError(str(error))
    connection.send(("", proof))


def prove_played(proof: Proof, given: argparse.Namespace, data: str, note: Callable) -> None:
    """Play scripted answers to rows of `data`, again and in all four programs; compare what they are paid."""
    placed = read_prompts(data, given.prompt_column)
    need(placed, f"got data {data!r} without rows; expected at least one")
    rows = [prompt_row(row, given.prompt_column, place) | {"number": i} for i, (place, row) in enumerate(placed, 1)]
    rows = drawn(rows, GOLD_ROWS)
    player = Player(proof.thing, given.reward, rows, given.max_turns, note)
    note("the conversations")
    pairs = {}
    for row in drawn(rows, ROWS):
        for policy, script in other_scripts(row, player.kind_of(row), rows).items():
            pairs.setdefault(policy, []).append((row, script))
    # silence first: what it is paid later shows what earlier conversations leave behind
    plays = {"silence": played(proof, player, "silence", pairs.pop("silence"))}
    plays["gold"] = gold_plays(proof, player, rows, data)
    plays |= {policy: played(proof, player, policy, of_policy) for policy, of_policy in pairs.items()}
    describe_payment(proof, plays, data)
    few = [play for of_policy in plays.values() for play in of_policy[:ROWS]]
    if not few:
        proof.skip("What the four places pay", "no conversation came to its end")
        return
    few.sort(key=lambda play: -play["return"])  # what an object keeps of the best shows in the worst
    note("the conversations, played again")
    compare_ways(proof, few, ways_of_playing(player, few) | places(proof.thing, player.rewards, player.limits, few))


def drawn(rows: list[dict], most: int) -> list[dict]:
    """At most so many rows, at random, as environments may alternate; in their order."""
    return sorted(random.Random(0).sample(rows, min(most, len(rows))), key=lambda row: row["number"])


def played(proof: Proof, player: Player, policy: str, pairs: list[tuple]) -> list[dict]:
    """Play (row, script) pairs one after another, up to the first that raises or whose tool hangs: a finding."""
    plays = []
    for row, script in pairs:
        player.note(f"{policy}, row {row['number']}")
        try:
            (value,), (talk,) = player.returns([(row, script)])
        except UserError as error:  # names the row, the file and the line
            text = str(error).replace("row 1 of the batch", f"row {row['number']}")
            proof.find(f"fault: {policy}: {text}; try accepting whatever a model may say")
            break
        results = [message for message in talk.messages if message["role"] == "tool"]
        errors = [x for x in results if re.match(r"\{['\"]error['\"]: ", x["content"])]
        if late := [x["name"] for x in errors if f"no answer in {TOOL_S:g} s" in x["content"]]:
            proof.find(f"hung_tool: tool {late[0]} gave no answer in {TOOL_S:g} s; try a limit inside the tool")
            break
        errors = [x["content"][:200] for x in errors]
        plays.append({"policy": policy, "row": row, "script": script, "return": value, "errors": errors})
    return plays


def gold_plays(proof: Proof, player: Player, rows: list[dict], data: str) -> list[dict]:
    """Play gold answers in the form that is paid best in the first rows; findings where they have no full marks."""
    scripts = [(row, gold_scripts(row["columns"], player.kind_of(row), f"{data}, column gold")) for row in rows]
    scripts = [(row, forms) for row, forms in scripts if forms]
    means = {form: 0.0 for _, forms in scripts for form in forms}
    for form in means if len(means) > 1 else ():
        trial = [(row, forms[form]) for row, forms in scripts[:TRIAL_ROWS] if form in forms]
        means[form] = statistics.fmean([play["return"] for play in played(proof, player, "gold", trial)] or [0.0])
    order = sorted(means, key=lambda form: -means[form])
    pairs = [(row, next(forms[form] for form in order if form in forms)) for row, forms in scripts]
    plays, advice = played(proof, player, "gold", pairs), "try a column gold with the answers of each turn"
    is_unpaid = plays and {*means} <= {*ANSWER_FORMS} and all(play["return"] <= 0 for play in plays)
    others = [forms for _, forms in scripts[1:] + scripts[:1]]
    for form in means if is_unpaid else ():
        wrong = [(row, forms[form]) for (row, _), forms in zip(scripts, others, strict=True)][:TRIAL_ROWS]
        paid = statistics.fmean([play["return"] for play in played(proof, player, "wrong", wrong)] or [means[form]])
        if paid > means[form]:
            form = form.format("answer")
            proof.find(f"sign: gold answers ({form}) are paid less than those of other rows; try the other sign")
            return plays
    if not pairs or is_unpaid:
        proof.is_open = True
        why = "no usual form of the answer is paid in any row" if pairs else "no row says them"
        proof.skip("What gold answers are paid", f"{why}; {advice}")
    if proof.is_open or not plays:
        return plays
    low = [play for play in plays if play["return"] < FULL_SHARE]
    form = order[0].format("answer")
    proof.figures["gold"] = {"form": form, "rows": len(plays), "full_marks": 1 - len(low) / len(plays)}
    if len(low) > (1 - FULL_SHARE) * len(plays):
        reason = f" ({low[0]['errors'][0]})" if low[0]["errors"] else ""
        text = f"gold answers ({form}) have less than full marks, 1, in {len(low)} of {len(plays)} rows"
        first = f"row {low[0]['row']['number']} gets {low[0]['return']:g}{reason}"
        proof.find(f"gold: {text}, such as {first}; {advice}")
    return plays


def describe_payment(proof: Proof, plays: dict[str, list[dict]], data: str) -> None:
    """Say what gold answers and others are paid; a finding where one without content is paid."""
    paid = {policy: [play["return"] for play in of_policy] for policy, of_policy in plays.items() if of_policy}
    full = max(statistics.fmean(paid.pop("gold", [1.0])), 1.0)
    proof.figures["most_paid"] = {policy: max(values) for policy, values in paid.items()}
    if gold := proof.figures.get("gold"):
        marks = f"gold answers ({gold['form']}) have full marks in {gold['full_marks']:.0%} of {gold['rows']} rows"
        others = ", ".join(f"{policy} {value:g}" for policy, value in proof.figures["most_paid"].items()) or "nothing"
        proof.say(f"{proof.thing} was played on {data}: {marks}; the most that others are paid: {others}.")
    for policy, values in paid.items():
        if (most := max(values)) > ALLOWED[policy] * full:
            mean = f"{statistics.fmean(values):g} on average, at most {most:g}"
            proof.find(f"{policy}: it is paid {mean}, of {full:g}; try paying for the task alone")


def ways_of_playing(player: Player, plays: list[dict]) -> dict:
    """{finding: function that plays the same conversations again and gives their returns} of the same environment."""
    pairs = [(play["row"], play["script"]) for play in plays]
    always = {name: itertools.repeat(kind.make()).__next__ for name, kind in player.environments.kinds.items()}
    kinds = {name: dataclasses.replace(kind, make=always[name]) for name, kind in player.environments.kinds.items()}
    one_object = Environments(kinds)  # of each kind, which serves one conversation after another, as with TRL
    return {
        "not_repeatable: side by side, it": lambda: player.returns(pairs)[0],
        "reset: an object that served other conversations": lambda: [
            player.returns([pair], one_object)[0][0] for pair in pairs
        ],
    }


# --------------------------------------------------------------------------- formulas (src/programs/prove/formulas.py)

TOKEN_WEIGHT, ROW_WEIGHT = " times old / rollout of each token", " times old / rollout of each sequence"
WEIGHTS = (TOKEN_WEIGHT, ROW_WEIGHT, "")  # corrections for the sampler; none where its log-probs only filter
FULL_KL = ("KL(policy || reference) of the vocabulary", "KL(reference || policy) of the vocabulary")
IN_ADVANTAGE = "k1 in the advantage"
WRONG_AXIS = "mean over columns of means over sequences"  # right for [T, B], a fault for [B, T]
DEVIATION_EPS = (0.0, 1e-6, 1e-5, 1e-4)  # what implementations add to a standard deviation


@dataclass(frozen=True)
class Formula:
    """A published formula."""

    kind: str  # a key of KINDS
    source: str
    words: str  # which the name of a function that computes it contains
    aggregations: str = ""  # how the published aggregation begins, "" if any will do


KINDS = {  # inputs that every formula of a kind needs
    "loss": {"logprobs", "advantages"},
    "kl": {"logprobs", "ref_logprobs"},
    "value": {"values", "returns"},
    "gae": {"values", "token_rewards"},
    "advantage": {"scores"},
    "mean": {"mask"},
}
FORMULAS = {  # if a function's name has the words of two, the first is meant
    "gspo": Formula("loss", "arXiv 2507.18071, eq. 5", "gspo", "mean over sequences of token means"),
    "cispo": Formula("loss", "arXiv 2506.13585, eq. 4", "cispo"),
    "sapo": Formula("loss", "arXiv 2511.20347", "sapo"),
    "gmpo": Formula("loss", "arXiv 2507.20673, eq. 3", "gmpo", "mean over sequences of token means"),
    "dapo": Formula("loss", "arXiv 2503.14476, eq. 8", "dapo", "sum over tokens / their number"),
    "dr_grpo": Formula("loss", "arXiv 2503.20783, section 3.2", "dr grpo", "token sum"),
    "grpo": Formula("loss", "arXiv 2402.03300, eq. 3", "grpo"),
    "ppo": Formula("loss", "Schulman 2017, eq. 7", "ppo"),
    "reinforce": Formula("loss", "Williams 1992", "reinforce"),
    **{name: Formula("kl", f"Schulman 2020, {name}", name) for name in ("k1", "k2", "k3", "kl")},
    "value_loss": Formula("value", "Schulman 2017, eq. 9, with clipped values", "value"),
    "critic_loss": Formula("value", "Schulman 2017, eq. 9, with clipped values", "critic"),
    "dr_grpo_advantage": Formula("advantage", "arXiv 2503.20783, section 3.2", "dr grpo"),
    "grpo_advantage": Formula("advantage", "arXiv 2402.03300, section 4.1.2", "grpo"),
    "rloo": Formula("advantage", "arXiv 2402.14740", "rloo"),
    "reinforce_pp": Formula("gae", "arXiv 2501.03262", "reinforce pp"),  # GAE with lambda 1 and values of 0
    "gae": Formula("gae", "Schulman 2016, eq. 16", "gae"),
    "masked_mean": Formula("mean", "sum of masked entries / their number", "masked mean"),
}


def kl_token(name: str, c: dict, i: int, t: int):
    """KL of token [i, t]: an estimate, times the ratio if the old policy sampled it, or the sum over the vocabulary."""
    logp, ref = c["logprobs"][i, t], c["ref_logprobs"][i, t]
    logp, ref = (ref, logp) if c.get("turned") else (logp, ref)
    if name in FULL_KL:
        p, q = (logp, ref) if name == FULL_KL[0] else (ref, logp)
        return (p.exp() * (p - q)).sum()
    d = logp - ref
    k3 = (-d).exp() - 1 + (-d if c.get("flipped") else d)
    value = {"k1": d, "k2": d * d / 2, "k3": k3, "|k1|": abs(d)}[name.split()[0]]
    return value * (logp - c["old_logprobs"][i, t]).exp() if "ratio" in name else value


def ways_of(formula: str, takes: set[str], full: bool) -> list[str]:
    """The published ways of writing a formula, for a function that takes these inputs.

    Args:
        full: whether log-probs are of the whole vocabulary.
    """
    kind = FORMULAS[formula].kind
    if kind == "kl":
        names = [*FULL_KL] if full else ["k1", "k2", "k3", "|k1|"] if formula == "kl" else [formula]
        return names + [f"{name} times the ratio" for name in names if "old_logprobs" in takes]
    if kind == "value":
        clips = [""] if "old_values" not in takes else ["clipped "] if "value_clip" in takes else ["clipped ", ""]
        return [f"{clip}{error}" for clip in clips for error in ("half squared error", "squared error")]
    names = {"gspo": ["gspo", "gspo of each token"], "cispo": ["cispo", CISPO_PAPER, CISPO_TRL]}.get(formula, [formula])
    terms = ("k3", "k1", "k2", "k3 times the ratio", IN_ADVANTAGE) if "ref_logprobs" in takes else ()
    with_kl = [f"{name} with {kl}" for name in names for kl in terms]
    names = with_kl if {"ref_logprobs", "beta"} <= takes else with_kl + names
    return [f"{name}{how}" for name in names for how in WEIGHTS] if "rollout_logprobs" in takes else names


def token_losses(way: str, kind: str, c: dict):
    """Losses [B, T] in one way of writing the formula, 0 outside the mask."""
    weighing = next((how for how in WEIGHTS if how and way.endswith(how)), "")
    losses, (name, _, kl) = [], way.removesuffix(weighing).partition(" with ")
    if kl == IN_ADVANTAGE:
        penalty = c["beta"] * (c["logprobs"] - c["ref_logprobs"]).detach()
        kl, c = "", c | {"advantages": c["advantages"] - penalty}
    for i, mask in enumerate(c["mask"]):
        row, places = [c["mask"].new_zeros(())] * len(mask), mask.nonzero().flatten().tolist()
        for t in places:
            if kind == "loss":
                over = {"": [], TOKEN_WEIGHT: [t]}.get(weighing, places)
                weight = math.exp(sum(float(c["old_logprobs"][i, k] - c["rollout_logprobs"][i, k]) for k in over))
                row[t] = policy_token(name, c, i, t, places) * weight
                row[t] = row[t] + (c["beta"] * kl_token(kl, c, i, t) if kl else 0)
            else:
                row[t] = {"kl": kl_token, "value": value_token}[kind](way, c, i, t) if kind != "mean" else c["x"][i, t]
        losses.append(torch.stack(row))
    return torch.stack(losses)


def aggregated(losses, c: dict, dims: int) -> dict:
    """{aggregation: result} of losses [B, T], for results with `dims` dimensions: 2, 1 or 0."""
    sums, counts, n = losses.sum(1), c["mask"].sum(1), c["length"]
    means = sums / counts.clamp(min=1)
    if dims:
        by_row = {"token mean of each row": means, "token sum of each row": sums, "token sum / N": sums / n}
        return {"each token": losses} if dims == 2 else by_row
    results = {"sum over tokens / their number": sums.sum() / counts.sum(), "sum over tokens": sums.sum()}
    for rows, words in ((len(counts), ""), (int((counts > 0).sum()), ", empty rows left out")):
        results[f"mean over sequences of token means{words}"] = means.sum() / rows
        results[f"token sum, mean over sequences{words}"] = sums.sum() / rows
        results[f"token sum / N, mean over sequences{words}"] = sums.sum() / rows / n
        results[f"token sum / width, mean over sequences{words}"] = sums.sum() / rows / losses.shape[1]
    columns = losses.sum(0) / c["mask"].sum(0).clamp(min=1)
    return results | {"token sum / N": sums.sum() / n, WRONG_AXIS: columns.mean()}


def group_advantages(formula: str, c: dict) -> dict:
    """{way: advantages [n]} of the scores [n], by the ids of their groups."""
    scores, ids, mean = c["scores"].flatten().tolist(), c["groups"], statistics.fmean
    groups = {name: [x for x, other in zip(scores, ids, strict=True) if other == name] for name in ids}
    pairs = [(x, groups[name]) for x, name in zip(scores, ids, strict=True)]
    if formula == "dr_grpo_advantage":
        return {"R - mean": [x - mean(group) for x, group in pairs]}
    if formula == "rloo":
        return {"R - mean of the others": [x - (sum(group) - x) / (len(group) - 1) for x, group in pairs]}
    ways = {}
    for eps in dict.fromkeys((c["std_eps"], *DEVIATION_EPS, *(x for x in c["numbers"] if 0 < x < 0.01))):
        for name, deviation in (("unbiased", statistics.stdev), ("population", statistics.pstdev)):
            for whole, of in (([], ""), (scores, " of the batch")):
                ways[f"{name} deviation{of}, eps {eps:g}"] = [
                    (x - mean(group)) / (deviation(whole or group) + eps) for x, group in pairs
                ]
    return ways


# --------------------------------------------------------------------- recognition (src/programs/prove/recognition.py)

LOGP = r"(log_?probs?|log_?ps?|log_?pis?|lp)"
VALUES = r"(values?|v|vpreds?|vs|value_preds?)"
SAMPLER = r"(behav\w+|rollout|generation|sampling|sampler|vllm|inference|mu)"
OLD = rf"(old|prev|{SAMPLER})"
NEW, POLICY = "(new|curr?|current)", "(policy|pi|theta|actor)"
REFERENCE = "(ref|reference|base|sft|initial)"
ROLES = {  # input -> names of parameters
    "old_logprobs": rf"(\w+_)?{OLD}_?(\w+_)?{LOGP}|{LOGP}_{OLD}",
    "ref_logprobs": rf"(\w+_)?{REFERENCE}_?(\w+_)?{LOGP}|{LOGP}_{REFERENCE}",
    "log_ratio": r"log_?(importance_?)?(ratios?|weights?)|negative_approx_kl",
    "ratio": r"(importance_|policy_|prob_)?ratios?",
    "logprobs": rf"({NEW}_?|({POLICY}|action|trainer|learner|per_token)_?)*{LOGP}(_({NEW}|{POLICY}))?",
    "advantages": r"adv(antage)?s?|a(_hat)?",
    "mask": r"(response_|completion_|action_|attention_|loss_|token_|eos_|valid_)?masks?",
    "token_rewards": r"token_(level_)?(rewards?|scores?)|per_token_rewards?",
    "scores": r"(\w+_)?(scores?|rewards?)",
    "old_values": rf"(old_|prev_){VALUES}|{VALUES}_old",
    "values": rf"(new_)?{VALUES}",
    "returns": r"returns?|value_targets?|targets?",
    "groups": r"groups?|group_(ids?|idx|index)|index|uids?|prompt_ids?|prompt_idx",
    "group_size": r"group_size|num_generations|((num|n)_)?samples(_per_prompt)?|(rloo_)?k|n|g",
    "low": r"(clip_|eps_|epsilon_|ratio_|cliprange_)*(low|lower|lo|(?<=_)min)(_eps|_clip)?",
    "high": r"(clip_|eps_|epsilon_|ratio_|cliprange_)*(high|higher|upper|hi|(?<=_)max)(_eps|_clip)?",
    "value_clip": r"value_clip(_eps|_range)?|vf_clip|clip_?range_?(value|vf)|clip_range_vf",
    "clip": r"(eps|epsilon|clip)(_clip)?|clip_(eps|epsilon|range|ratio|param|coef)|cliprange",
    "std_eps": r"(std|adv|advantage)_(eps|epsilon)",
    "dual_clip": r"dual_clip|clip_ratio_c",
    "beta": r"beta(_kl)?|kl_(coef|coeff|beta|weight|lambda)",
    "gamma": r"gamma|discount",
    "entropy": r"(token_)?entropy|entropies",
    "entropy_weight": r"(entropy|ent)_(coef|coeff|weight|beta)",
    "gae_lambda": r"lam|lambda_?|gae_lam(bda)?|lmbda|lambd",
    "length": r"max_(len|length|tokens|new_tokens|completion_length|response_length)|norm_length|constant",
    "tau_pos": r"(sapo_)?(tau_pos|tau_positive)",
    "tau_neg": r"(sapo_)?(tau_neg|tau_negative)",
}
# {role that two parameters have: (pattern for the name of one of them, the role it gets instead)}
BESIDE = {
    "old_logprobs": (rf"{SAMPLER}.*|.*_{SAMPLER}", "rollout_logprobs"),
    "values": (r"(old_)?values?", "old_values"),
}
# {kind of formula: {role by name: the role meant there}}
OTHERWISE = {"advantage": {"clip": "std_eps"}, "gae": {"scores": "token_rewards"}, "value": {"clip": "value_clip"}}
SEVERAL = ("x",)  # roles that several parameters may have
ASIDE = ("entropy", "entropy_weight")  # roles in a further term, which has a check of its own
SHAPED = {"scores", "token_rewards", "values"}  # with these a loss or KL is more than its formula
RATIOS = {"log_ratio", "ratio"}  # of policy and old policy: of a KL, it would be unclear which is on top
FOREIGN = {"loss": {*SHAPED, "returns"}, "kl": {*SHAPED, *RATIOS, "advantages"}, "advantage": {"logprobs"}}
SMALLEST_CLIP = 1e-4  # a smaller default is an epsilon against division by 0, not a clip
CLIPPED = {*"clip clipped surrogate policy actor loss losses objective compute get per token forward call".split()}
GENERIC = {"kl", "value_loss", "critic_loss"}  # names that say what is computed, not by which formula
EMPTY, KEYWORD = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
SPREAD = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass
class Candidate:
    """A public function of a file: its formula and findings, or why it is not checked."""

    name: str
    where: str
    formula: str = ""
    why: str = ""
    written_as: str = ""
    findings: list = field(default_factory=list)
    leak: str = ""  # what nan beneath the mask reaches: "value" or "gradient"
    roles: dict = field(default_factory=dict)  # {parameter: role}
    left: tuple = ()  # parameters without a role, which keep their defaults
    generic: bool = False  # its name says what it computes, not by which formula
    unknown_form: bool = False  # it was called, and fits no form known here

    def find(self, finding: str) -> None:
        self.findings.append(f"{self.where}: {finding}")

    @property
    def claims(self) -> bool:
        """Whether its name says the loss of an algorithm; or loss or advantage, and it takes what one is made of."""
        name, made_of = self.name.lower(), {"logprobs", *RATIOS, "scores", "token_rewards", "returns"}
        made_of |= {"advantages"} if "loss" in name else set()
        made_of |= {"values"} if re.search("value|critic", name) else set()
        if re.search(r"\b(plot|log|print|show|save|format|report|get|register)_|_(metrics|stats|hist\w*)$", name):
            return False
        takes = made_of & {*self.roles.values()} and re.search("loss|objective|advantage|gae", name)
        return bool(takes or re.search("(ppo|grpo|gspo|dapo|cispo|rloo|policy|actor)_?loss", name))


def role_of(name: str) -> str:
    """The role of a parameter's name, or ""."""
    return next((role for role, pattern in ROLES.items() if re.fullmatch(pattern, name.lower())), "")


def inputs_of(roles: dict[str, str], kind: str) -> dict[str, str]:
    """{parameter: role} in a kind of formula, without parameters that have none there."""
    known = {name: role for name, role in roles.items() if role and role not in FOREIGN.get(kind, ())}
    return {name: OTHERWISE.get(kind, {}).get(role, role) for name, role in known.items()}


def missing(formula: str, roles: dict[str, str]) -> set[str]:
    """Roles that a formula needs and a function lacks."""
    kind, without = FORMULAS[formula].kind, {"values"} if formula == "reinforce_pp" else set()
    takes, ratio = {*inputs_of(roles, kind).values()}, kind == "loss" and formula != "reinforce"
    if "token_rewards" in takes:  # a row's last token reward is its score
        takes.add("scores")
    if ratio and RATIOS & takes:
        takes |= {"logprobs", "old_logprobs"}
    return (KINDS[kind] | ({"old_logprobs"} if ratio else set())) - without - takes


def formula_of(name: str, roles: dict[str, str]) -> tuple[str, bool]:
    """(Formula that a function's name and parameters say, or ""; whether the name is generic)."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)  # GRPOLoss
    has = {*re.findall(r"[a-z\d]+", re.sub("_?plus_?plus", "_pp", name.lower()))}
    for formula, about in FORMULAS.items():
        # an advantage of another formula; the clipped loss of REINFORCE++
        is_other = "pp" in has if formula == "reinforce" else "baseline" in has and about.kind in ("advantage", "gae")
        if not is_other and {*about.words.split()} <= has and not missing(formula, roles):
            return formula, formula in GENERIC
    if "gae_lambda" in roles.values() and not missing("gae", roles):
        return "gae", True
    clipped = has <= CLIPPED and has & {"clip", "clipped", "policy"} and {*roles.values()} & {"clip", "low", "high"}
    return "ppo" if clipped and not missing("ppo", roles) else "", True


def once(known: dict[str, str], parameters: list[inspect.Parameter]) -> dict[str, str]:
    """Drop optional parameters from `known`: second ones of a role, clips too small to be one, entropy terms."""
    kept = {}
    for p in sorted(parameters, key=lambda p: p.default is not p.empty):
        role, number = known.get(p.name), p.default if isinstance(p.default, float) else 0.0
        small = role in ("clip", "value_clip") and 0 < number < SMALLEST_CLIP
        small |= role in RATIOS and number > 0  # a clip of that name
        second = p.default is not p.empty and role in kept.values() and role not in SEVERAL
        if role and not small and not second and (role not in ASIDE or p.default is p.empty):
            kept[p.name] = role
    return kept


def recognised(name: str, function, where: str, formula: str) -> Candidate:
    """The candidate for a function: its formula, by name or (if not "") as the user says, and its parameters' roles."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError) as error:  # torch.jit.script leaves none
        return Candidate(name, where, why=f"its parameters cannot be read ({error})")
    parameters = [p for p in parameters if p.kind not in SPREAD]
    roles = {p.name: role_of(p.name) for p in parameters}
    for role, (pattern, other) in BESIDE.items():
        if [*roles.values()].count(role) == 2:
            roles |= {x: other for x in roles if roles[x] == role and re.fullmatch(pattern, x.lower())}
    formula, generic = (formula, False) if formula else formula_of(name, roles)
    candidate = Candidate(name, where, formula, roles=roles, generic=generic)
    if not candidate.formula:
        unknown = ", ".join(p.name for p in parameters if not roles[p.name] and p.default is EMPTY)
        candidate.why = "its name and inputs name no formula that is known here"
        candidate.why += f" (inputs of no known name: {unknown})" if unknown else ""
        return candidate
    kind = FORMULAS[candidate.formula].kind
    known = inputs_of(roles, kind)
    if kind == "mean":
        known |= {p.name: "x" for p in parameters[:2] if known.get(p.name) != "mask"}
    known = once(known, parameters)
    unknown = [p.name for p in parameters if p.name not in known and p.default is p.empty]
    single = [role for role in known.values() if role not in SEVERAL]
    twice = [x for x, role in known.items() if single.count(role) > 1]
    left = [p.name for p in parameters if p.name not in known and p.default is not p.empty]
    candidate.roles, candidate.left = known, tuple(left)
    if twice:
        candidate.why = f"it takes {' and '.join(twice)}, which could be the same input"
    elif unknown:
        candidate.why = f"it needs {', '.join(unknown)}, which no input of {candidate.formula} is called"
    elif lacking := missing(candidate.formula, roles):
        candidate.why = f"it has no {' and no '.join(sorted(lacking))} of a known name"
    return candidate


class Fields(dict):
    """A batch or settings, whose entries are also attributes, before a dictionary's own such as `values`."""

    def __getattribute__(self, name: str):
        return self[name] if name in self else super().__getattribute__(name)


def fields_of(p: inspect.Parameter, code) -> dict:
    """{entry or attribute that a function reads of a batch or settings: its default, or EMPTY}; {} of an input."""
    kind = type(p.default) if p.default is not EMPTY else code.__globals__.get(p.annotation, p.annotation)
    is_dataclass, fields = dataclasses.is_dataclass(kind), {}
    if not is_dataclass and (role_of(p.name) or p.default not in (EMPTY, None)):
        return {}
    source = textwrap.dedent(inspect.getsource(code))
    if p.default is None and re.search(rf"\bif (not )?{p.name}\b(?![.\[])|\b{p.name} or\b", source):
        return {}  # it has a way without them
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(ast.Attribute(ast.Name(p.name), "get"), [ast.Constant(str(key)), *rest]):
                fields[key] = rest[0].value if rest and isinstance(rest[0], ast.Constant) else None
            case ast.Subscript(ast.Name(p.name), ast.Constant(str(key))):
                fields[key] = EMPTY
            case ast.Attribute(ast.Name(p.name), key) if key != "get":
                fields.setdefault(key, EMPTY if p.default is EMPTY or role_of(key) else None)
    if is_dataclass:
        made = kind if p.default is EMPTY else p.default
        return {key: getattr(made, key, EMPTY) for key in fields or inspect.signature(kind).parameters}
    return fields if any(map(role_of, fields)) else {}


def unfolded(function, code):
    """A function that takes the fields of its batches and settings as parameters; `code`: where it reads them."""
    code = inspect.unwrap(code)
    try:
        taken = [p for p in inspect.signature(function).parameters.values() if p.kind not in SPREAD]
        held = {p.name: fields_of(p, code) for p in taken}
    except (OSError, TypeError, ValueError, SyntaxError, AttributeError):  # no signature or no source
        return function
    defaults = {p.name: p.default for p in taken if not held[p.name]}
    for fields in held.values():
        defaults |= fields

    def called(**given):
        batches = {
            name: Fields({x: given.get(x, default) for x, default in fields.items()})
            for name, fields in held.items()
            if fields
        }
        return function(**batches, **{x: value for x, value in given.items() if x in held})

    called.__signature__ = inspect.Signature([inspect.Parameter(x, KEYWORD, default=y) for x, y in defaults.items()])
    return called


def callable_of(module, name: str):
    """A module's function, or a method as a function that also takes its class's parameters; None if not callable."""
    owner, _, method = name.partition(".")
    thing = getattr(module, owner, None)
    function = getattr(thing, method, None) if method else thing
    if not method or not inspect.isfunction(function) or isinstance(vars(thing).get(method), staticmethod):
        return unfolded(function, function) if callable(function) else None
    make, of_method = unfolded(thing, thing.__init__), unfolded(functools.partial(function, None), function)
    try:
        of_init, of_call = (inspect.signature(x).parameters for x in (make, of_method))
    except (TypeError, ValueError):
        return function

    def called(**given):
        instance = make(**{x: given.pop(x) for x in of_init.keys() - of_call.keys() & {*given}})
        return unfolded(functools.partial(function, instance), function)(**given)

    parameters = [p.replace(kind=KEYWORD) for p in {**of_init, **of_call}.values() if p.kind not in SPREAD]
    called.__signature__ = inspect.Signature(parameters)
    return called


# --------------------------------------------------------------- function calls (src/programs/prove/function_calls.py)

MASK = (  # ragged rows, pads on either side, a hole, an empty row
    (0, 1, 1, 1, 1, 1, 1),
    (0, 0, 1, 0, 1, 1, 0),
    (1, 1, 0, 0, 0, 0, 0),
    (0, 0, 0, 0, 0, 0, 0),
    (1, 1, 1, 1, 0, 0, 0),
)
SCORES, ROW_ADVANTAGES = (0.3, 1.0, 0.9, 0.0, 0.1, 2.0, 0.6, 0.4), (1.3, -0.8, 0.6, 2.0, -1.7)
# {place: log-ratio} where no clip bounds the loss, yet below 5, from where implementations cap log-ratios
LARGE = {(0, 1): -3.0, (0, 2): -4.5, (4, 0): 3.0, (4, 1): 4.5}
# the same for rows whose mean ratio a bound cuts: above with a positive advantage, below with a negative one
CUT = {(2, 0): 0.2, (2, 1): 0.9, (1, 2): -0.2, (1, 4): -0.9, (1, 5): -0.1}
BY_TOKEN = tuple(
    "logprobs old_logprobs ref_logprobs values old_values returns token_rewards x rollout_logprobs".split()
)
AFTER = (0.9, -0.7, 1.6, -1.2, 0.5)  # value after the last step of each row, for functions that take it
NUMBERS = {
    **{"low": 0.1, "high": 0.3, "clip": 0.2, "value_clip": 0.2, "std_eps": 1e-3, "beta": 0.7, "gamma": 0.9, "sign": 1},
    **{"gae_lambda": 0.8, "length": 11.0, "tau_pos": 1.0, "tau_neg": 1.05, "group_size": 4, "dual_clip": 2.0},
}
INSIDE = {"loss": ("low", "high", "beta"), "value": ("value_clip",), "gae": ("gamma", "gae_lambda")}  # by kind
MOST_INSIDE = 24  # ways to assign a function's own numbers to roles
BY_WEIGHTS = ("loss", "kl", "value")  # kinds that may have further terms with weights
LEAVES = {"value": "values", "mean": "x"}  # input that the gradient is taken for, by kind; else log-probs
NOTES = {  # what the report says about a form of inputs
    **{"whole": "for masks without holes alone", "by_time": "for [T, B], not [B, T]", "squeezed": "for one row a call"},
    **{"bootstrap": "for values with one more", "part": "the second of what it returns"},
    "full": "for log-probs of the whole vocabulary",
    "interleaved": "for samples in the order p1 p2 … p1 p2 …",
    "white": "with the advantages whitened inside",
    "one_group": "for one group a call: a batch of groups would count as one",
    "off": "with its further terms at weight 0",
    "dual_inside": "with a dual clip of 3 inside",
}


def inputs(kind: str, takes: set[str], numbers: list[float]) -> dict:
    """Inputs by role in float64, random beneath the mask too; `numbers` are those in the function's source."""
    generator = torch.Generator().manual_seed(0)
    rows = MASK if kind != "advantage" else [MASK[i] for i in (0, 1, 2, 4)] * 2
    mask = torch.tensor(rows, dtype=torch.float64)
    mask = mask if "mask" in takes else torch.ones_like(mask)
    c = {name: torch.randn(mask.shape, generator=generator, dtype=torch.float64) for name in BY_TOKEN}
    c["logprobs"] = -c["logprobs"].abs() - 0.1
    for name, size in (("old_logprobs", 0.5), ("ref_logprobs", 0.3)):
        c[name] = c["logprobs"] + size * c[name]
    for place, size in (LARGE | CUT).items() if kind == "loss" else ():
        c["old_logprobs"][place] = c["logprobs"][place] - size
        if place in LARGE:
            c["x"][place] = -math.copysign(1 + c["x"][place].abs(), size)
    c["values"] *= kind != "gae" or "values" in takes
    c["rollout_logprobs"] = c["old_logprobs"] + 0.03 * c["rollout_logprobs"]  # no bound is near these ratios
    c["old_values"] = c["values"] + 0.4 * c["old_values"]
    for i, (move, error) in enumerate(itertools.product((-0.5, 0.1, 0.5), (-0.9, 0.9)) if kind == "value" else (), 1):
        c["old_values"][0, i], c["returns"][0, i] = c["values"][0, i] - move, c["values"][0, i] - error
    c |= NUMBERS | {"mask": mask, "scores": torch.tensor(SCORES, dtype=torch.float64), "all": c["x"], "groups": [0] * 5}
    zeros = torch.zeros_like(mask)
    c |= {"after": zeros[:, 0], "entropy": zeros, "entropy_weight": 0.1}
    c |= {"low": 0.2, "high": 0.2} if not takes & {"low", "high"} else {}
    c |= {"dual_clip": 0.0, "gamma": 1.0, "gae_lambda": 1.0} | {name: c[name] for name in NUMBERS if name in takes}
    c |= {"numbers": numbers} | ({"beta": 1.0} if kind == "kl" else {})
    if kind == "advantage":
        c["groups"] = [i % 2 if "groups" in takes else i // 4 for i in range(len(SCORES))]
        c["token_rewards"] = torch.zeros_like(mask)
        c["token_rewards"][range(len(mask)), [row.nonzero().max().item() for row in mask]] = c["scores"]
    return c


def values_inside(role: str, numbers: list[float]) -> list[float]:
    """Numbers of a function's source as values of a role; bounds may be written as 1 - low and 1 + high."""
    ways = {"low": lambda x: (x, 1 - x), "high": lambda x: (x, x - 1)}.get(role, lambda x: (x,))
    values = {round(y, 12) for x in numbers for y in ways(x) if y > SMALLEST_CLIP}
    return sorted(y for y in values if y <= 0.5 or (role == "high" and y > 1) or role not in ("low", "high"))


def inside_forms(formula: str, kind: str, takes: set[str], numbers: list[float]) -> list[dict]:
    """Forms for numbers that a function has inside instead of taking them."""
    roles = ("tau_pos", "tau_neg") if formula == "sapo" else INSIDE.get(kind, ())
    bounded = takes & {"low", "high", "clip"} or formula == "reinforce"
    roles = [x for x in roles if x not in takes and not (bounded and x in ("low", "high"))]
    roles = [x for x in roles if {"beta": "ref_logprobs", "gae_lambda": "values"}.get(x) in (None, *takes)]
    ways = itertools.product(*(values_inside(role, numbers) or [NUMBERS[role]] for role in roles))
    forms = [dict(zip(roles, way, strict=True)) | {"inside": roles} for way in ways if roles]
    forms.sort(key=lambda form: form.get("low") != form.get("high"))
    lengths = values_inside("length", numbers) if kind == "loss" and "length" not in takes else []
    return forms[:MOST_INSIDE] + [{"length": x, "inside": ["length"]} for x in lengths if x > 1]


def input_forms(formula: str, kind: str, takes: set[str], c: dict) -> list[dict]:
    """Forms that a function may want its inputs in: changes to `c` that leave the formula the same."""
    if kind == "advantage":
        ids = [{"ids": torch.tensor(c["groups"])}, {"ids": c["groups"]}]
        group = {"scores": c["scores"][:4], "mask": c["mask"][:4], "groups": [0] * 4, "one_group": True}
        if "group_size" in takes and "groups" not in takes:
            ids.append({"groups": [i % 2 for i in range(len(SCORES))], "interleaved": True})
        return ids if takes & {"groups", "group_size", "token_rewards"} else [{"scores": c["scores"].view(2, 4)}, group]
    forms = [{}]
    if kind == "gae":
        whole = (c["mask"].cumsum(1) > 0) & (c["mask"].flip(1).cumsum(1).flip(1) > 0)
        row = {name: c[name][:1] for name in ("token_rewards", "values", "mask")} | {"squeezed": True}
        ways = [{}, {"mask": whole.double(), "whole": True}]
        if "mask" not in takes:
            ways = [{}, row]
            ways += [x | {"bootstrap": True, "after": torch.tensor(AFTER, dtype=torch.float64)} for x in ways]
        forms = [part | way for part in ({}, {"part": 1}) for way in ways]
    elif kind == "loss":
        rows = torch.tensor(ROW_ADVANTAGES, dtype=torch.float64)
        same = rows[:, None].expand_as(c["mask"])
        forms = [{"advantages": x, "all": same} for x in (same, rows, rows[:, None])]
        forms = forms if formula in ("gspo", "gmpo") else [{"advantages": c["x"]}, *forms]
    # for [T, B], advantages equal along a row would hide a mean over the wrong axis
    wide = [x for x in forms if kind != "loss" or x["advantages"] is c["x"] or x["advantages"].dim() == 1]
    forms += [x | {"by_time": True} for x in wide if not x.get("squeezed")]
    more = [*inside_forms(formula, kind, takes, c["numbers"]), *([{"off": True}] if kind in BY_WEIGHTS else [])]
    if kind == "loss" and "dual_clip" not in takes:
        more.append({"dual_clip": 3.0, "dual_inside": True})
    forms += [form | other for other in more for form in forms]
    if formula == "kl":
        scale = torch.linspace(-1, 1, 5, dtype=torch.float64)
        names = ("logprobs", "ref_logprobs")
        forms.append({n: (c[n][..., None] * scale).log_softmax(-1) for n in names} | {"full": True})
    return forms + (whitened_forms(c, forms) if kind == "loss" else [])


def whitened_forms(c: dict, forms: list[dict]) -> list[dict]:
    """Forms of a loss that whitens its advantages; others would not show whether it leaves out padding."""
    whitened = []
    for form, correction in itertools.product(forms, (1, 0)):
        given = form["advantages"]
        if given.shape in (c["mask"].shape, () if "by_time" in form else c["mask"].shape[:1]):
            inside = given[c["mask"].bool()] if given.shape == c["mask"].shape else given
            white = (given - inside.mean()) / inside.std(correction=correction)
            whitened.append(form | {"all": white.reshape(len(white), -1).expand_as(c["mask"]), "white": True})
    return whitened


class Tried:
    """A function of losses or advantages, called with inputs by role."""

    def __init__(self, function, candidate: Candidate):
        self.function, self.roles, self.takes = function, candidate.roles, {*candidate.roles.values()}
        self.kind = FORMULAS[candidate.formula].kind
        self.leaf = LEAVES.get(self.kind, "logprobs")
        self.terms = [x for x in candidate.left if re.search("(coef|coeff|weight)$", x.lower())]
        self.changed, self.others = [], None

    def __call__(self, c: dict):
        """Call the function with each type of inputs until one works; returns its tensor, rows first, or raises."""
        *ways, last = self.handed(c)
        for values in ways:
            with contextlib.suppress(Exception):
                return self.read(c, values)
        return self.read(c, last)

    def handed(self, c: dict) -> list[dict]:
        """Inputs by role as tensors, with a boolean mask, and where no gradient is taken also as arrays and lists."""
        given = c | {"groups": c.get("ids", c["groups"])}
        if RATIOS & self.takes:
            steps = c["logprobs"] - c["old_logprobs"]
            given |= {"log_ratio": steps, "ratio": steps.exp()}
        tensors = {role: given[role] for role in self.takes}
        for role, x in tensors.items():
            if getattr(x, "shape", None) == c["mask"].shape:
                if c.get("bootstrap") and role == "values":
                    x = torch.cat([x, c["after"][: len(x), None]], 1)
                tensors[role] = x[0] if c.get("squeezed") else x.T if c.get("by_time") else x
        kinds = ("numpy", "tolist") if self.kind in ("gae", "advantage") else ()
        others = [{n: getattr(x, kind)() if torch.is_tensor(x) else x for n, x in tensors.items()} for kind in kinds]
        return [tensors, *others, tensors | ({"mask": tensors["mask"].bool()} if "mask" in tensors else {})]

    def read(self, c: dict, given: dict):
        """Call the function with inputs by role; returns one tensor and keeps what else it returns in `others`."""
        copies = {role: x.clone() if torch.is_tensor(x) else copy.deepcopy(x) for role, x in given.items()}
        settings = dict.fromkeys(self.terms if c.get("off") else (), 0.0) | c.get("set", {})
        result = self.function(**({name: copies[role] for name, role in self.roles.items()} | settings))
        changed = set()
        for role, x in given.items():
            keep = given.get("mask", x) != 0
            if torch.is_tensor(x) and ((x != copies[role]) & (keep if keep.shape == x.shape else x == x)).any():
                changed.add(role)
        self.changed = [name for name, role in self.roles.items() if role in changed]
        if dataclasses.is_dataclass(result) or hasattr(result, "_asdict"):
            result = {name: getattr(result, name) for name in result.__annotations__}
        if isinstance(result, dict):
            word = {"loss": "loss", "value": "loss", "kl": "kl"}.get(self.kind, "adv")
            names = [x for x in (word, f"{word}antages") if x in result]
            names = names or [x for x in result if word in str(x).lower()] or [*result]
            result = (result[names[0]], *(x for name, x in result.items() if re.search("return|target", str(name))))
        others = [x for x in result if not isinstance(x, dict)] if isinstance(result, tuple) else [result]
        result = self.turned(others.pop(c.get("part", 0)), c)
        with contextlib.suppress(Exception):  # they may be anything
            others = [self.turned(x, c) for x in others]
        self.others = others
        return result.reshape(()) if result.numel() == 1 else result

    def turned(self, result, c: dict):
        """A result with its rows first."""
        result = torch.as_tensor(result)
        return result[None] if c.get("squeezed") else result.T if c.get("by_time") and result.dim() == 2 else result

    def with_gradient(self, c: dict):
        """(Result, gradient of its sum weighted by `weights`, or None if it carries no gradient)."""
        c = c | {self.leaf: c[self.leaf].clone().requires_grad_(True)}
        result = self(c)
        if not result.requires_grad:
            return result, None
        weights = self.weights(c, result)
        total = (torch.where(weights != 0, result, torch.zeros_like(result)) * weights).sum()
        return result.detach(), torch.autograd.grad(total, c[self.leaf], allow_unused=True)[0]

    def weights(self, c: dict, result):
        """Weights of a result's entries: 0 for padding and empty rows, which no formula defines."""
        mask, ones = c["mask"], torch.ones_like(result, dtype=torch.float64)
        if result.shape == mask.shape:
            return mask * (1 + torch.arange(mask.numel(), dtype=mask.dtype).view(mask.shape) % 5)
        return (mask.sum(1) > 0) * ones if result.dim() == 1 and len(result) == len(mask) else ones


def near(a, b, weights) -> float:
    """The largest difference where weights are not 0, relative to b's largest entry; 0 within rounding, inf for nan."""
    gap = torch.where(weights != 0, (a.double() - b).abs(), torch.zeros_like(b)).max().item()
    size = torch.where(weights != 0, b.abs(), torch.zeros_like(b)).max().item()
    gap = math.inf if math.isnan(gap) else gap / max(1.0, size)
    return 0.0 if gap <= (1e-12 if a.dtype == torch.float64 else 3e-5) else gap


# ------------------------------------------------------------- function checks (src/programs/prove/function_checks.py)

CALLS = 8  # repeated calls with the same inputs
FAR = 8.0  # a log-ratio to the sampler that every truncation or filter acts on
ROWS_FIRST = r"[\[(]\s*(B|N|bs|batch\w*)\s*,\s*(T|S|L|seq\w*|time)\b|batch[ _-]first"
FAULTS = {  # {what a faulty function computes: the changes to the formula's inputs that give it}
    "the formula with its sign flipped": lambda c: {"sign": -c["sign"]},
    "the formula without the mask": lambda c: {"mask": c["mask"] * 0 + 1},
    "the formula with its bound on the wrong side": lambda c: {"all": -c["all"], "sign": -c["sign"]},
    "the formula with the smaller of its two errors": lambda c: {"least": True},
    "the formula with values and old values exchanged inside its clip": lambda c: {"exchanged": True},
    "the formula with policy and reference exchanged in its KL": lambda c: {"turned": True},
    "the formula with the sign of k3's linear term flipped": lambda c: {"flipped": True},
    "the formula without a bound": lambda c: {"low": math.inf, "high": math.inf, "value_clip": math.inf},
    "the formula without its lower bound": lambda c: {"low": math.inf},
    "the formula without its upper bound": lambda c: {"high": math.inf},
    "the formula with its two bounds exchanged": lambda c: {"low": c["high"], "high": c["low"]},
    "the formula with old / rollout upside down": lambda c: {
        "rollout_logprobs": 2 * c["old_logprobs"] - c["rollout_logprobs"]
    },
    "the formula with the ratio upside down": lambda c: {"logprobs": c["old_logprobs"], "old_logprobs": c["logprobs"]},
    "the formula without the old log-probs, the ratio always 1": lambda c: {"old_logprobs": c["logprobs"].detach()},
    "the formula without the KL term": lambda c: {"beta": 0.0},
    "the formula with its KL term subtracted": lambda c: {"beta": -c["beta"]},
    "the formula over the whole batch as one group": lambda c: {"groups": [0] * len(c["groups"])},
    "the formula over neighbours as groups": lambda c: {"groups": [i // 4 for i in range(len(c["groups"]))]},
    "twice the formula": lambda c: {"sign": 2 * c["sign"]},
    "half the formula": lambda c: {"sign": c["sign"] / 2},
    "the formula with its lower bound on both sides": lambda c: {"high": c["low"]},
    "the formula with its upper bound on both sides": lambda c: {"low": c["high"]},
    "the formula with lambda 1": lambda c: {"gae_lambda": 1.0},
    "the formula with gamma 1": lambda c: {"gamma": 1.0},
    "the formula with gamma and lambda exchanged": lambda c: {"gamma": c["gae_lambda"], "gae_lambda": c["gamma"]},
    "the formula whitened over the padding too": lambda c: {"padded": True},
}
ROUNDING = 1e-6  # relative tolerance of value and gradient in float64, as implementations add 1e-8 in places
PADDED = " / width"  # marks aggregations that divide by all places, padding included; right for Dr. GRPO only


@dataclass(frozen=True)
class Fit:
    """A function's result compared with the nearest way of its formula."""

    value: float  # relative difference, 0 within rounding
    gradient: float  # the same of the gradient
    way: str
    given: dict  # the inputs by role
    result: object
    changed: list  # parameters that the function changed in place

    @property
    def exact(self) -> bool:
        """Whether value and gradient are the formula's."""
        return not self.value and not self.gradient


def references(formula: str, tried: Tried, c: dict, shape) -> dict:
    """{way: (the formula's result, the tensor to take its gradient for, or None)}, of the ways with this shape."""
    if tried.kind in ("advantage", "gae"):
        names = ("token_rewards", "values", "mask", "gamma", "gae_lambda")
        results = {} if tried.kind == "gae" else group_advantages(formula, c)
        results = {way: torch.tensor(x, dtype=torch.float64) for way, x in results.items()}
        results = {way: x[:, None] * c["mask"] if shape == c["mask"].shape else x for way, x in results.items()}
        if tried.kind == "gae":
            plain = own_gae(*(c[name] for name in names), c["after"])
            inside, results = plain if c.get("padded") else plain[c["mask"].bool()], {"not whitened": plain}
            for i, how in enumerate(("population deviation", "unbiased deviation")):
                results[f"whitened, {how}"] = (plain - inside.mean()) / inside.std(correction=i)
        fitting = {way: x for way, x in results.items() if x.numel() == math.prod(shape)}
        return {way: (c["sign"] * x.reshape(shape), None) for way, x in fitting.items()}
    leaf = c[tried.leaf].detach().clone().requires_grad_(True)
    c, results = c | {tried.leaf: leaf, "advantages": c["all"]}, {}
    for way in ways_of(formula, tried.takes, c["logprobs"].dim() == 3):
        for how, value in aggregated(token_losses(way, tried.kind, c), c, len(shape)).items():
            if how != WRONG_AXIS or not c.get("by_time"):  # for [T, B] that axis is the right one
                results[f"{way}, {how}"] = (c["sign"] * value, leaf)
    return {way: pair for way, pair in results.items() if pair[0].shape == shape}


def compared(result, gradient, reference, leaf, weights) -> tuple[float, float]:
    """Relative differences of (value, gradient); the latter is 0 if the value differs or there is no gradient."""
    value = near(result, reference.detach(), weights)
    if leaf is None or value > ROUNDING:
        return value, 0.0
    (expected,) = torch.autograd.grad((reference * weights).sum(), leaf, retain_graph=True)
    got = torch.zeros_like(expected) if gradient is None else gradient
    return value, near(got, expected, torch.ones_like(expected))


def right_without_empty_rows(formula: str, tried: Tried, c: dict) -> bool:
    """Whether a function computes its formula once rows without tokens are left out, in some form of inputs."""
    full = c["mask"].sum(1) > 0
    for form in input_forms(formula, tried.kind, tried.takes, c):
        filled = {name: x[full] if getattr(x, "shape", ())[:1] == full.shape else x for name, x in (c | form).items()}
        with contextlib.suppress(Exception):
            result, gradient = tried.with_gradient(filled)
            pairs = references(formula, tried, filled, result.shape).values()
            if any(compared(result, gradient, *pair, tried.weights(filled, result)) == (0, 0) for pair in pairs):
                return True
    return False


def named_fault(candidate: Candidate, tried: Tried, c: dict, fit: Fit) -> tuple[str, bool]:
    """(What a function computes instead of its formula, in words; whether that was recognised)."""
    formula, result = candidate.formula, fit.result
    weights, about = tried.weights(c, result), f"{formula} ({FORMULAS[formula].source})"
    if not fit.value:
        return f"its value is that of {about}, {fit.way}, its gradient is not (relative gap {fit.gradient:.2g})", True
    is_finite = torch.where(weights != 0, result, torch.zeros_like(result)).isfinite().all()
    if right_without_empty_rows(formula, tried, c):
        effect = "changes its value" if is_finite else "makes it nan"
        return f"it is {about}, but for an empty row, which {effect}", True
    if not is_finite:
        return f"it returns nan or infinity on ragged rows, a hole and an empty row; {about} is finite there", True

    def way_of(other: str, changed: dict) -> str | None:
        results = references(other, tried, changed, result.shape).items()
        return next((way for way, (x, _) in results if near(result, x.detach(), weights) <= ROUNDING), None)

    for text, change in FAULTS.items():
        if way_of(formula, c | change(c)):
            is_weight = candidate.generic and candidate.left and text.split()[0] in ("twice", "half")  # a default
            return f"it computes {text}; expected {about}", not is_weight
    for other, its in sorted(FORMULAS.items(), key=lambda pair: pair[0] != "ppo"):  # others share ppo's token loss
        if its.kind == tried.kind and other != formula and not missing(other, tried.roles) and other not in GENERIC:
            if way := way_of(other, c):
                return f"it computes {other} ({its.source}), {way}; expected {about}", True
    left = f"; left at their defaults: {', '.join(candidate.left)}" if candidate.left else ""
    gap = f"the nearest, {fit.way}, differs by {fit.value:.2g} (relative){left}"
    return f"it is none of the published forms of {about}: {gap}", False


def look_at_calls(candidate: Candidate, tried: Tried, fit: Fit) -> bool:
    """Whether repeated calls give the same result; a finding if not."""
    try:
        later = [tried(fit.given) for _ in range(CALLS)]
    except Exception as error:
        candidate.find(f"a later call with the same inputs raises {type(error).__name__}: {str(error)[:120]}")
        return False
    weights = tried.weights(fit.given, fit.result)
    if fit.result.isfinite().all() and any(near(x, fit.result.double(), weights) > ROUNDING for x in later):
        candidate.find("the same inputs give another value in a later call")
        return False
    return True


def look_at_way(candidate: Candidate, fit: Fit, words: str) -> None:
    """Add a finding if the function aggregates unlike its formula, over padding, or over the wrong axis."""
    wanted, how = FORMULAS[candidate.formula].aggregations, fit.way.partition(", ")[2]
    if fit.given.get("by_time") and re.search(ROWS_FIRST, words, re.IGNORECASE):
        candidate.find("its source says [B, T], and it fits [T, B] alone: it goes over the wrong axis")
    elif how.startswith(WRONG_AXIS):
        candidate.find("it averages over the wrong axis, over rows before tokens; expected the tokens of each row")
    elif PADDED in how and candidate.formula != "dr_grpo":
        candidate.find("it divides by all places, padding included; expected the masked tokens alone")
    elif wanted and not how.startswith(("each token", "token mean of each row", wanted)):
        candidate.find(f"it aggregates by {how}; expected {wanted} for {candidate.formula}")


def look_beneath(candidate: Candidate, tried: Tried, c: dict) -> None:
    """Note whether nan beneath the mask reaches the value or gradient; add a finding if it raises."""
    hidden, spoilt = c["mask"] == 0, {}
    for name in {*BY_TOKEN, "advantages"} - {"token_rewards"}:  # rewards come from no network, so have no nan
        x = c.get(name)
        if getattr(x, "shape", ())[:2] == hidden.shape:
            places = hidden.view(*hidden.shape, *[1] * (x.dim() - 2))
            spoilt[name] = torch.where(places, x * math.nan, x)
    usual, gradient = tried.with_gradient(c)
    try:
        result, other = tried.with_gradient(c | spoilt)
    except Exception as error:
        candidate.find(f"with nan beneath the mask it raises {type(error).__name__}: {str(error)[:120]}")
        return
    in_value = near(result, usual.double(), tried.weights(c, result)) > ROUNDING
    if in_value or (gradient is not None and near(other, gradient.double(), torch.ones_like(gradient)) > ROUNDING):
        candidate.leak = "value" if in_value else "gradient"


def look_at_equal_scores(candidate: Candidate, tried: Tried, c: dict) -> None:
    """Add a finding if a group of equal scores gets advantages."""
    equal = tried(c | {"scores": c["scores"] * 0, "token_rewards": c["token_rewards"] * 0}).flatten()
    if not bool((equal.abs() <= ROUNDING).all()):
        candidate.find(f"groups of equal scores get {equal[0].item():g}; expected 0")


def look_at_sampler(candidate: Candidate, tried: Tried, fit: Fit) -> None:
    """Add a finding if the sampler's log-probs never matter, even so far off that a filter would drop the tokens."""
    c = fit.given
    far = c["old_logprobs"] + FAR * (-1) ** c["mask"].cumsum(1)
    with contextlib.suppress(Exception):  # a function that raises has read them
        result = tried(c | {"rollout_logprobs": far})
        if " times old / rollout" not in fit.way and not near(result, fit.result.double(), tried.weights(c, result)):
            name = next(x for x, role in tried.roles.items() if role == "rollout_logprobs")
            if inspect.signature(tried.function).parameters[name].default is not inspect.Parameter.empty:
                return  # a setting may switch it on
            candidate.find(f"{name} changes nothing, however far it is from the old log-probs")


def look_at_entropy(candidate: Candidate, tried: Tried, fit: Fit) -> None:
    """Add a finding if a larger entropy makes the loss larger."""
    c, none = fit.given, torch.zeros_like(fit.given["mask"])
    for name in [x for x in (*tried.roles, *candidate.left) if re.fullmatch(ROLES["entropy"], x)]:
        with contextlib.suppress(Exception):  # an optional parameter may want another form
            low, high = (tried(c | {"set": {name: x}}).sum() for x in (none, none + 1))
            if c["sign"] * (high - low) > ROUNDING:
                candidate.find(f"a larger {name} raises the loss; expected an entropy bonus to lower it")


def look_at_returns(candidate: Candidate, tried: Tried, fit: Fit) -> None:
    """Add a finding if the returns beside a function's advantages are not advantage + value."""
    c = fit.given
    tried(c)
    others = [x.double() for x in tried.others if getattr(x, "shape", None) == fit.result.shape]
    if not others:
        return
    weights, values = tried.weights(c, fit.result), c["values"][: len(c["mask"])]

    def gae(**changed):
        return references("gae", tried, c | changed, fit.result.shape)["not whitened"][0]

    sums = [gae() + values, gae(gae_lambda=1.0) + values]  # at lambda = 1 returns are discounted rewards
    known = [*sums, gae(), gae(gae_lambda=0.0), values, c["token_rewards"][: len(values)]]
    is_sum = any(near(x, y, weights) <= ROUNDING for x in others for y in sums)
    if not is_sum and any(all(near(x, y, weights) > ROUNDING for y in known) for x in others):
        candidate.find("the returns beside its advantages are not advantage + value, of the plain advantages")


# --------------------------------------------------------------- function proof (src/programs/prove/function_proof.py)

UNBOUNDED = "its bounds on old / rollout not reached"
# forms that count if they fit
RARE = {*"by_time inside off interleaved full dual_inside white".split()}


def nearest_fit(candidate: Candidate, tried: Tried, c: dict, forms: list[dict]) -> Fit | None:
    """The fit in the first form in which a function is its formula, else in the nearest; None if no form works."""
    nearest, problems = [], []
    for form in forms:
        try:
            result, gradient = tried.with_gradient(c | form)
            formulas = references(candidate.formula, tried, c | form, result.shape)
            weights, ranks = tried.weights(c | form, result), []
            for way, pair in formulas.items():
                gaps = compared(result, gradient, *pair, weights)
                ranks.append((*(x * (x > ROUNDING) for x in gaps), PADDED in way or WRONG_AXIS in way, *gaps, way))
            exact = any(rank[:2] == (0.0, 0.0) for rank in ranks)
            if exact or not RARE & {*form}:
                nearest += [(rank, c | form, result, tried.changed) for rank in ranks]
            if any(rank[:3] == (0.0, 0.0, False) for rank in ranks):
                break
            problems.insert(0, f"it could not be read: it returns a tensor {[*result.shape]}")
        except Exception as error:  # the function does not take this form, or is broken
            problems.append(f"it could not be called: {type(error).__name__}: {str(error)[:160]}")
    if not nearest:
        candidate.why = problems[0]
        return None
    (value, gradient, *_, way), given, result, changed = min(nearest, key=lambda x: x[0])
    return Fit(value, gradient, way, given, result, changed)


def judge(candidate: Candidate, function, numbers: list[float], words: str) -> None:
    """Compare a function, whose source has these numbers and comments, with its formula; note findings."""
    tried = Tried(function, candidate)
    c = inputs(tried.kind, tried.takes, numbers)
    c["sign"] = -1 if re.search("objective|surrogate(?!.*loss)", candidate.name.lower()) else 1  # these are maximised
    forms = input_forms(candidate.formula, tried.kind, tried.takes, c)
    fit = nearest_fit(candidate, tried, c, forms)
    if fit and fit.changed:
        candidate.find(f"it changes its caller's {', '.join(fit.changed)} in place")
    if fit and not fit.exact:
        fit = note_fault(candidate, tried, fit, forms)
    if not fit:
        return
    candidate.written_as = written_as(candidate, tried, fit)
    if not fit.exact or not look_at_calls(candidate, tried, fit):
        return
    look_at_way(candidate, fit, words)
    if "mask" in tried.takes:
        look_beneath(candidate, tried, fit.given)
    if tried.kind == "advantage":
        look_at_equal_scores(candidate, tried, fit.given)
    if tried.kind == "gae":
        look_at_returns(candidate, tried, fit)
    if tried.kind == "loss":
        look_at_entropy(candidate, tried, fit)
    if "rollout_logprobs" in tried.takes:
        look_at_sampler(candidate, tried, fit)


def note_fault(candidate: Candidate, tried: Tried, fit: Fit, forms: list[dict]) -> Fit | None:
    """Add the finding about a function that is not its formula; or return None, as not enough is known for one.

    That is so where the name is generic, or where numbers are not parameters: they may come from another place.
    """
    if not look_at_calls(candidate, tried, fit):
        return fit
    fault, is_known = named_fault(candidate, tried, fit.given, fit)
    has_numbers_inside = any(form.get("inside", ["length"]) != ["length"] for form in forms)
    if not is_known and (candidate.generic or has_numbers_inside):
        candidate.unknown_form = True
        candidate.why = fault.replace("it is none of the published forms", "it is not one of the forms known here")
        return None
    candidate.find(fault)
    return fit


def written_as(candidate: Candidate, tried: Tried, fit: Fit) -> str:
    """The way of the formula and the form of inputs that a function fits, for the report."""
    notes = [NOTES[x] for x in NOTES if x in fit.given]
    if roles := fit.given.get("inside"):
        notes.append(f"with {' and '.join(f'{role} {fit.given[role]:g}' for role in roles)} inside")
    if "entropy" in tried.takes:
        notes.append("its entropy term apart")
    if tried.others and "part" not in fit.given and tried.kind != "gae":
        notes.append("the first of what it returns")
    if candidate.left:
        notes.append(f"with the default of {first([*candidate.left], 4)}")
    return ", ".join([fit.way, *notes, *([UNBOUNDED] if "rollout_logprobs" in tried.takes else [])])


def public(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """{public function, Class.method, or name that a call or lambda is assigned to: its statement or class}."""
    nodes = {}
    for node in body:
        names = [node.name] if isinstance(node, ast.FunctionDef) else []
        if isinstance(node, ast.ClassDef):
            names = [f"{node.name}.{x.name}" for x in node.body if isinstance(x, ast.FunctionDef)]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call | ast.Lambda):
            names = [x.id for x in node.targets if isinstance(x, ast.Name)]
        nodes |= {name: node for name in names if not re.search(r"(^|\.)_(?!_call__)", name)}
    return nodes


def functions_of(path: Path) -> tuple[dict[Path, dict[str, ast.stmt]], dict[Path, str]]:
    """({file: its `public` names}, {file of a folder that cannot be parsed: why}); nothing is run.

    Dot-folders and site-packages are left out.
    """
    functions, failed = {}, {}
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    for file in files:
        if any(name.startswith(".") or name == "site-packages" for name in file.relative_to(path).parts[:-1]):
            continue
        try:
            functions[file] = public(parsed(file))
        except UserError as error:
            if not path.is_dir():
                raise
            failed[file] = str(error)
    return functions, failed


def named_formulas(given: str, names: list[str]) -> dict[str, str]:
    """{function: formula} of --as: `my_loss=grpo,…`, or formulas of the functions in their order."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    expected = f"expected NAME=FORMULA,… or a formula for each of {', '.join(names)}; formulas: {', '.join(FORMULAS)}"
    plain = [name for name in names if "." not in name] or names
    if len(words) == len(plain) and "=" not in given:
        words = [f"{name}={word}" for name, word in zip(plain, words, strict=True)]
    pairs = dict(word.partition("=")[::2] for word in words)
    need({*pairs} <= {*names} and {*pairs.values()} <= {*FORMULAS}, f"got --as {given}; {expected}")
    return pairs


def prove_functions(path: Path, only: str, given: str) -> Proof:
    """Compare the functions of a file or folder, or a single one, with their formulas."""
    proof, known, unknown = Proof("functions", f"{path}:{only}" if only else str(path)), [], []
    functions, failed = functions_of(path)
    every = [(file, name, node) for file, nodes in functions.items() for name, node in nodes.items()]
    places = [place for place in every if not only or only in (place[1], place[1].partition(".")[0])]
    need(places, f"got {path} without {only or 'a public function'}; expected functions of losses or advantages")
    callables = []
    for file, name, node in places:
        if file in failed:
            continue
        try:
            with contextlib.redirect_stdout(sys.stderr):
                function = callable_of(import_file("functions", str(file), str(file)), name)
        except UserError as error:
            need(path.is_dir(), str(error))
            failed[file] = " ".join(f"importing it raises {error.__cause__!r}".split())
            continue
        callables += [(file, name, node, function)] if function else []
    formulas = named_formulas(given, [name for _, name, *_ in callables])
    for file, name, node, function in callables:
        x = recognised(name, function, f"{name} ({file}, line {node.lineno})", formulas.get(name, ""))
        if not x.why:
            eager = torch.compiler.set_stance("force_eager")  # compiling one function takes a minute
            with eager, warnings.catch_warnings(), np.errstate(all="ignore"):  # from forms that it does not take
                warnings.simplefilter("ignore")
                text = ast.get_source_segment(file.read_text(encoding="utf-8"), node)
                judge(x, function, numbers_in(node, file), "\n".join(re.findall(r'#.*|"""[\s\S]*?"""', text)))
        (unknown if x.why else known).append(x)
        proof.findings += x.findings
        if not x.why:
            about = {"formula": x.formula, "source": FORMULAS[x.formula].source, "written_as": x.written_as}
            about |= {"left_at_default": [*x.left], "agrees": not x.findings, "nan_beneath_mask_reaches": x.leak}
            proof.figures[x.where] = about
    proof.not_measured += [f"{x.where}: {x.why}" for x in unknown] + [f"{file}: {why}" for file, why in failed.items()]
    accepted = "expected losses or advantages with inputs such as logprobs and mask; try --as NAME=FORMULA, one of "
    accepted += f"{', '.join(FORMULAS)}; for a reward or environment FILE.py:NAME --data FILE; for a trainer "
    accepted += "selfcheck.py --contract"
    unfitting = [x.name for x in unknown if x.unknown_form]
    need(known or unfitting, f"got {proof.thing} with {first(proof.not_measured, 3) or 'no function'}; {accepted}")
    lacking = [x for x in unknown if not x.unknown_form and (x.name in formulas or x.claims)]
    proof.is_open = bool(unfitting or lacking)
    if lacking:
        names = first([f"{x.name} ({x.why})" for x in lacking], 4)
        way = "try --as NAME=FORMULA for a published one"
        proof.say(f"Not checked, so this is proved in part at most: {names}; {way}.")
    if known:
        describe(proof, known)
    if unfitting:
        proof.say(f"Computed, but by none of the known formulas: {first(unfitting)}.")
    if missed := [*(x.name for x in unknown if not x.unknown_form and x not in lacking), *map(str, failed)]:
        proof.say(f"Not recognised or not imported, so not checked: {first(missed)}.")
    return proof


def numbers_in(node: ast.stmt, file: Path) -> list[float]:
    """Numbers in a definition of a file, and in those of the file's variables and functions that it names."""
    nodes = [*ast.walk(node)]
    names = {x.id for x in nodes if isinstance(x, ast.Name)}
    for x in parsed(file):
        if names & bound_names(x):
            nodes += ast.walk(x)
    return sorted({float(x.value) for x in nodes if isinstance(x, ast.Constant) and type(x.value) in (int, float)})


def first(names: list[str], most: int = 12) -> str:
    """The first names as text, and how many more there are."""
    return ", ".join(names if len(names) <= most else [*names[:most], f"{len(names) - most} more"])


def describe(proof: Proof, known: list[Candidate]) -> None:
    """Add the sentences on which functions were recognised and how many agree with their formulas."""
    agreeing = [x for x in known if not x.findings]
    names = first([f"{x.name} as {x.formula}" for x in known])
    proof.say(f"Recognised in {proof.thing}: {names}.")
    ways = f" ({first([f'{x.name}: {x.written_as}' for x in agreeing], 8)})" if agreeing else ""
    proof.say(
        f"{len(agreeing)} of {len(known)} have the value and gradient of their published formula, by prove.py's own "
        f"float64 loops over single tokens, within 1e-6 (3e-5 in float32){ways}."
    )
    masked = [x for x in agreeing if "mask" in x.roles.values() and "without holes" not in x.written_as]
    tried = "ragged rows, pads on either side, a hole and an empty row change nothing"
    if masked:
        clean = sum(not x.leak for x in masked)
        proof.say(f"{len(masked)} of these take a mask: {tried}; nan beneath it changes nothing in {clean}.")
    if leaks := [f"the {x.leak} of {x.name}" for x in known if x.leak]:
        advice = "torch.where(mask, x, 0) before arithmetic keeps it out"
        proof.say(f"Note: nan beneath the mask gets into {first(leaks)}; {advice}.")


# ----------------------------------------------------------------------------- command (src/programs/prove/command.py)

ACCEPTED = (
    "expected a run's folder, results.json of evaluation.py or its folder, scored samples (JSON, JSONL, CSV, parquet), "
    "FILE.py:function or :Environment with --data, a trainer or a file or folder of losses and advantages in Python, "
    "or settings (.yaml) or overrides (.txt) of a verl job"
)
FLAGS = {"formulas": "--as", "python": "--python", "flags": "flags after --"}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        usage="%(prog)s THING [--flag value ...] [-- flags of a trainer, an environment or reward_preflight.py]",
        description=__doc__,
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("thing", help="what to prove, as above", metavar="THING")
    parser.add_argument("--data", default="", metavar="FILE", help="rows for a reward or environment; a run's test set")
    named = "formulas of functions: loss_1=grpo,loss_2=gspo, or one for each function; " + ", ".join(FORMULAS)
    parser.add_argument("--as", default="", dest="formulas", metavar="NAMES", help=named)
    python = "for a verl job: the Python that has verl (default: this one)"
    parser.add_argument("--python", metavar="PYTHON", help=python)
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M", help="minutes for all checks (default: 1)")
    return parser


def check_flags(args, kind: str, *taken: str) -> None:
    """Raise UserError for flags of FLAGS that are set but not in `taken`, those that a kind of thing takes."""
    for place, flag in FLAGS.items():
        got = f"got {flag} with {args.thing}, which is checked as {kind}"
        need(place in taken or not getattr(args, place), f"{got}; expected no such flag; try leaving it out")


def proof_of(args) -> Proof:
    """Prove a thing by its kind; UserError if it has no known kind."""
    path, seconds = Path(args.thing), 54 * args.minutes  # of 60: imports and the report take the rest
    need(args.minutes > 0, f"got --minutes {args.minutes:g}; expected above 0")
    file, _, name = args.thing.rpartition(":") if ".py:" in args.thing else (args.thing, "", "")
    need(Path(file).exists(), f"got {args.thing}: no file or folder {file}; {ACCEPTED}")
    if args.data and file.endswith(".py") and not name:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        names = [x.name for x in parsed(Path(file)) if isinstance(x, kinds) and x.name[0] != "_"]
        got = f"got --data with {file}, which has {', '.join(names) or 'no function'}"
        need(len(names) == 1, f"{got}; expected FILE.py:NAME of a reward or environment")
        (name,) = names
        args.thing = f"{file}:{name}"
    if name and args.data:
        check_flags(args, "reward or environment", "flags")
        prove_named = prove_environment if is_environment(Path(file), name) else prove_reward
        return prove_named(args.thing, args.data, args.flags, seconds)
    folder = next((x for x in (path, path.parent) if path.is_dir() and values_of(x)), path)
    is_run = not results_files(path) and (values_of(folder) or other_settings(folder))
    got = f"got --data with {args.thing}; expected it with a run or with FILE.py:NAME"
    need(not args.data or is_run, f"{got}; {ACCEPTED}")
    if files := results_files(path):
        check_flags(args, "evaluation")
        return prove_evaluation(path, [Results(file) for file in files], [], seconds)
    if is_run:
        check_flags(args, "run")
        return prove_run(folder, seconds, args.data)
    if path.suffix in (".yaml", ".yml", ".txt", ".sh"):
        check_flags(args, "verl job", "python")
        return prove_job(path, args.python or sys.executable, seconds)
    functions = functions_of(Path(file))[0] if file.endswith(".py") or [*path.glob("*.py")] else {}
    names = {name for nodes in functions.values() for name in nodes}
    if path.suffix == ".py" and CONTRACT & names and not args.formulas:
        check_flags(args, "trainer", "flags")
        return prove_trainer(path, args.flags, seconds)
    is_of_runs = any(values_of(x) for x in path.glob("*/"))
    results, unreadable = ([], []) if names or is_of_runs else other_evaluations(path)
    if results:
        check_flags(args, "evaluation")
        return prove_evaluation(path, results, unreadable, seconds)
    names = names or (path.is_dir() and not is_of_runs and any(functions_of(path)[0].values()))  # in subfolders
    hint = "; try rows with a column correct and, of several, model" if path.suffix in SCORED_FILES else ""
    need(names, f"got {args.thing}, which is none of these; {ACCEPTED}{hint}")
    check_flags(args, "functions", "formulas")
    return prove_functions(Path(file), name, args.formulas)


def prove(args) -> int:
    """Print the proof and return the exit code."""
    begin = time.perf_counter()
    try:
        proof = proof_of(args)
    except UserError as error:
        raise UserError(str(error)) from None  # with this program's exit code, not that of what failed
    report = {"kind": proof.kind, "thing": proof.thing, "proved": proof.proved, "findings": proof.findings}
    report |= {"sentences": proof.sentences, "not_measured": proof.not_measured, "figures": proof.figures}
    tell(json.dumps(report | {"seconds": round(time.perf_counter() - begin, 1)}, indent=1, allow_nan=False))
    for sentence in proof.sentences:
        say(sentence)
    for finding in proof.findings:
        say(f"against it: {finding}")
    return 1 if proof.findings else 0


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    at = argv.index("--") if "--" in argv else len(argv)  # what follows is selfcheck.py's or reward_preflight.py's
    args = parse_flags(make_parser(), argv[:at])
    args.flags = argv[at + 1 :]
    quiet_environment()
    return exit_code(lambda: prove(args), mend="try the same command", stopped="stopped; nothing was written")


if __name__ == "__main__":
    sys.exit(main())
