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
    compared   0/1 values: exact McNemar test, Bonett-Price 2012 interval; others: paired bootstrap over rows

Deliberately left out: benchmarks' own data (give the file or hub id), log-probs from servers and vLLM (too many
dialects to trust), and judging by another model (a reward function may do that).

    python scripts/evaluation.py --task math --data assets/data/arithmetic_eval.jsonl              # CPU, in seconds
    python scripts/evaluation.py --model Qwen/Qwen2.5-0.5B-Instruct --model runs/qwen/final \\
        --task math --data openai/gsm8k:main@test --output_dir runs/before_after              # one GPU, both compared
    python scripts/evaluation.py --environment examples/environments.py:SecondAttempt --max_turns 2 \\
        --max_new_tokens 32 --data assets/data/arithmetic_eval.jsonl
    torchrun --nproc_per_node 4 -- scripts/evaluation.py --model … --task code --data HumanEval.jsonl.gz --n 20

Exit codes: 0 done, 2 bad input, 3 a grader or an environment failed.
"""

# Contents
#       150-161  python source       Parses Python source in a process with threads
#       164-260  messages            Errors that a user can fix, each with its exit code, messages on stderr, and the …
#       263-268  bundle              Paths of this bundle and of its embedded model, data and rewards
#       271-431  dialect             Names of settings: ours, the pages' and TRL's. A program accepts every name with …
#       434-606  settings            Settings: a dataclass whose fields are flags and YAML keys, and the checks that …
#       609-947  processes           The processes of a run: torch at first use, device, threads, sums, distributing …
#      950-1015  exit codes          How a program ends: errors that a user can fix become a message and an exit code
#     1018-1235  data files          Data files as text: unpack, decode, refuse files without data; the rows of CSV …
#     1238-1351  nested rows         Rows inside other JSON: an object that holds a list of them, columns instead of …
#     1354-1588  rows                Rows of data from JSONL, JSON, CSV, parquet or the hub, and what a prompt may be
#     1591-1688  stated answers      Where a text states its final answer: marks and phrases in 20 languages, and the …
#     1691-1826  answer marks        Final answers that worked solutions mark by a last line `#### 42`, or state there
#     1829-2111  question parts      Columns that look like part of the question: passages, options, images, a second …
#     2114-2244  chat                Chat templates: their settings, how they render messages, and strings that …
#     2247-2273  held out            Held-out prompts: keep rows back for them, count those that also train, refuse a …
#     2276-2291  prompts             Prompts as token ids, for training and held out
#     2294-2305  pass rates          Pass rates of prompts: pass@k, groups with signal, and the verdict: RL, a warm …
#     2308-2350  text servers        Texts from OpenAI-compatible servers: one completion a request, with retries if …
#     2353-2564  user code           What a reward gets: texts, copies of the columns, and a process state of its own
#     2567-2827  reward forms        The forms that a reward function may have, loading one, and its arguments
#     2830-3125  rewards             The reward of a run: a weighted sum of functions; calling them, async ones in …
#     3128-3282  environments        Environments: classes whose methods are a model's tools, or that talk with it; …
#     3285-3511  tool calls          Tool calls in model output: read by the tokenizer's response template, or by one …
#     3514-3654  tool runs           Run the calls of many conversations side by side: each has a time limit, and …
#     3657-3719  control tokens      Render messages so that nothing in them becomes a control token, where …
#     3722-3977  turn bridge         The tokens between turns, from the chat template alone: sampled ids are never …
#     3980-4134  conversations       A conversation with an environment: its record, and calls of the environment's …
#     4137-4297  play                Play a policy's conversations with environments: each turn samples all open ones …
#     4300-4482  play setup          Setup of conversations, and their scores, for all programs that take --environment
#     4485-4779  models              Loading networks: precision, LoRA adapters, tokenizers, 4-bit weights, frozen …
#     4782-4790  batches             Batches: padding, collating, micro-batches, packed rows with each prompt once, …
#     4793-5092  key cache           Keys and values during sampling: room to grow, prompts stored once, texts kept …
#     5095-5260  forward             One forward pass: attention that runs a prompt once, backbone, logits, log-probs …
#     5263-5311  folding             LoRA folded into the weights during sampling: it saves a third of the kernels …
#     5314-5366  norms               RMS norms in one kernel during sampling: transformers uses six or more for each, …
#     5369-5557  cache probe         What a model's cache and attention can do, measured before sampling
#     5560-5642  room steps          One more token per row, with fixed shapes and addresses within the cache, as a …
#     5645-5874  sampling            Sampling with the policy itself: a KV cache, rows that leave the batch when they …
#     5877-5931  sampling vllm       Sampling with vLLM on the same GPU, and copying the weights into it
#     5934-5952  rollouts            Sample and score a batch's rows over all processes; slow rewards run while other …
#     5955-6106  memory              The memory that a run will need, from the shape of its networks
#     6109-6163  fit                 Sizes that fit the memory: chosen and reported in one line, refused if too …
#     6166-6200  output folder       The output folder: which run owns it, folders written whole or not at all, modes …
#     6203-6378  paired tests        Intervals, paired tests, pass@k
#     6381-6433  evaluation results  results.json of evaluation.py: reading one, and comparing two row by row
#     6436-6602  settings            Settings
#     6605-6768  rows                Rows: reading and checking them, those that the model was trained on, files that …
#     6771-7061  tasks               What a task is; generation, mathematics, code
#     7064-7208  scored tasks        Tasks of log-probs: perplexity, multiple choice
#     7211-7411  requests            What is asked of a model: worked examples, templates, token ids; and what was …
#     7414-7561  own tasks           Tasks of the user: reward functions, conversations with an environment
#     7564-7843  local model         A model of transformers: batched sampling and scoring; the beginning that all …
#     7846-7968  models              Models in vLLM, on servers, and none; opening those that were named
#     7971-8125  run                 Running the tasks, and the command line

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
import locale
import logging
import math
import numbers
import os
import platform
import random
import re
import reprlib
import shlex
import shutil
import signal
import socket
import ssl
import sys
import threading
import time
import traceback
import unicodedata
import urllib.error
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

# --------------------------------------------------------------- python source (src/parts/foundation/python_source.py)


def parse_python(source: str, name: str = "<unknown>", mode: str = "exec") -> ast.AST:
    """`ast.parse`, again where another thread disturbs it: CPython 3.11 counts the depth of all threads in one place,
    and then raises a SystemError for a sound source. A lock would hang in a process forked while it is held."""
    for _ in range(100):
        try:
            return ast.parse(source, name, mode)
        except SystemError:
            continue
    return ast.parse(source, name, mode)


# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, or 120 columns where there is none."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=32, width=shutil.get_terminal_size((120, 0)).columns - 2)


class UserError(Exception):
    """Something the user can mend; printed without a traceback. `code` is the exit code."""

    code = 2


class RewardError(UserError):
    """A reward function raised or returned something that is not a score."""

    code = 3


class DivergedError(UserError):
    """Too many updates in a row were not finite."""

    code = 4


class MemoryShortage(UserError):
    """Memory ran out. `before_update` is true where the step had not changed a weight yet."""

    def __init__(self, message: str, before_update: bool = False):
        super().__init__(message)
        self.before_update = before_update


class RowFlaw(UserError):
    """A row that cannot be used; says which field, what it held, what was expected, and how to mend it."""

    def __init__(self, field: str, got, expected: str, advice: str = "mending or leaving out the row"):
        super().__init__(f"{field}: got {got}; expected {expected}; try {advice}")
        self.parts = {"field": field, "got": str(got), "expected": expected, "try": advice}


FULL = re.compile(r"No space left|os error (28|122)\b|unexpected pos \d+|PytorchStreamWriter failed writing")

SHORT = re.compile(r"out of memory|not enough memory|(can't|cannot) allocate memory|_ALLOC_FAILED", re.IGNORECASE)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is of a full disk or quota; torch has words of its own."""
    while error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or FULL.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, says that the memory of a machine or a GPU ran out; no UserError does."""
    while error and not isinstance(error, UserError):
        if isinstance(error, MemoryError) or SHORT.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def memory_shortage(phase: str, error: BaseException, advice: str, before_update: bool = False) -> MemoryShortage:
    """What the user is told of an error of `is_out_of_memory`."""
    said = str(error).partition("\n")[0][:200] or type(error).__name__
    message = f"got out of memory {phase} ({said}); expected room for it; try {advice}"
    return MemoryShortage(message, before_update)


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def say(text: str) -> None:
    """Print a diagnostic line on stderr, once in a torchrun launch."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


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
EMBEDDED_MODEL = str(BUNDLE / "assets" / "tiny_lm")
EMBEDDED_REWARDS = str(BUNDLE / "examples" / "reward_functions_library.py")


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
    (
        "columns",
        "gold_column signature",
        "try --gold_column NAME, or for several --signature 'NAME(completions, A, B)'",
    ),
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
OPTIMIZER_STEPS = {"max_steps", "save_steps", "eval_steps"}  # what TRL counts by them; our steps are rollouts


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
    """A command line in a program's own names, spelled with `_`; one setting by two names needs one value.

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
        found.append(f"--{own}{word[2 + len(given) :]}" if own else word)
    if "epsilon" in values and first.get("clip_eps_low") and not {"clip_eps_high", *elsewhere} & first.keys():
        found.append(f"--clip_eps_high={values['epsilon']}")
    return found


def same_value(one: str, other: str) -> bool:
    """Whether two texts say the same, as `1e-5` and `0.00001` do."""
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


def check_units(settings: dict, words: list[str]) -> None:
    """Raise UserError for names of TRL's that count something else with these settings.

    TRL's steps are optimizer steps, ours are rollouts; its cispo bounds the weight itself, ours the distance from 1.
    """
    values = flag_values(words)
    passes = "ppo_epochs" if "ppo_epochs" in settings else "epochs"
    updates = settings.get(passes, 1) * settings.get("minibatches", 1) if "minibatches" in settings else 1
    for name in sorted(OPTIMIZER_STEPS & values.keys() - settings.keys()):
        own = own_name(name, settings)
        got = f"got --{name} {values[name]}, in optimizer steps"
        many = f"{passes} {settings.get(passes)} x minibatches {settings.get('minibatches')} of them"
        share = max(1, int(values[name]) // updates) if values[name].isdigit() else "N"
        need(updates == 1 or not own, f"{got}; expected --{own}, whose steps are {many} each; try --{own} {share}")
    ours = settings.get("loss") == "cispo"
    others = {"epsilon", "epsilon_high"} if ours else {"clip_eps_low", "clip_eps_high"}
    mixed = sorted(others & values.keys()) if "cispo" in (settings.get("loss"), settings.get("loss_type")) else []
    names = ["--" + own_name(name, settings) for name in mixed]
    text = f"got --{', --'.join(mixed)} with cispo; expected {', '.join(names)}: epsilon_high = 1 + clip_eps_high"
    need(not mixed, text)


# ------------------------------------------------------------------------- settings (src/parts/foundation/settings.py)


class BaseConfig:
    """What the Config of every program is; the parts name the fields that they read."""

    given = frozenset()  # names of the settings that the command line or its YAML file has
    removed: ClassVar[dict[str, str]] = {}  # settings of earlier versions, and what to use instead
    reuse_prefill = decode_graphs = True  # settings of those that sample in every step
    attn_implementation = "auto"  # a setting of those that train or evaluate
    share_prompts = False  # a setting of those that train without a library's trainer
    eval_rows = hold_out = 0  # of those that evaluate as they train
    threads = "auto"  # of those that compute on a CPU
    score_while_sampling = "never"  # of those that train


def setting(default, help, choices=None, positive=False, free=False, several=False, auto="", section=""):
    """Return a dataclass field that carries its help text; a list default means the flag may be repeated.

    Args:
        choices: a list, or a function that returns one where the names stand further down in the file.
        positive: a number that must be above 0; others may be 0.
        free: may change on --resume.
        several: one flag takes several values.
        auto: of a number that may also be `auto`: what that stands for; the default is the most that is chosen.
        section: heading of the settings from here on, in --help.
    """
    value = {"default_factory": lambda: list(default)} if isinstance(default, list) else {"default": default}
    kinds = {"positive": positive, "free": free, "several": several, "auto": auto, "section": section}
    return field(metadata={"help": help, "choices": choices, **kinds}, **value)


def parse_bool(text: str) -> bool:
    """Read a flag's or YAML key's boolean."""
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise argparse.ArgumentTypeError(f"got {text!r}, expected true or false")


def parse_auto(text: str) -> int | None:
    """Read a whole number, or `auto` as None."""
    try:
        return None if text.lower() == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number or auto") from None


METAVARS = {bool: "BOOL", int: "N", float: "X"}


def build_parser(config_class, description: str) -> argparse.ArgumentParser:
    """Make one flag per field of `config_class`, under the headings of its sections; absent flags stay absent."""
    usage = "%(prog)s [--flag value ...]    (--help has all flags)"  # the list of them is longer than any message
    parser = argparse.ArgumentParser(usage=usage, description=description, formatter_class=Help, allow_abbrev=False)
    group, hidden = parser, argparse.SUPPRESS
    parser.add_argument("--config", metavar="FILE", default=hidden, help="YAML file of settings; flags win over it")
    for f in dataclasses.fields(config_class):
        repeat, is_bool = f.type == list[str], f.type is bool
        default = [] if repeat else f.default
        choices = f.metadata["choices"]() if callable(f.metadata["choices"]) else f.metadata["choices"]
        auto = f.metadata["auto"]
        shown = f"auto: {auto}" if auto else "that of --algorithm" if default is None else default
        explained = default == 0 and not is_bool and "0:" in f.metadata["help"]
        untold = repeat or default == "" or (explained and not auto)
        text = f.metadata["help"].replace("%", "%%") + ("" if untold else f" (default: {shown})")
        several = {"action": "extend", "nargs": "+"} if f.metadata["several"] else {"action": "append"}
        extra = several if repeat else {"nargs": "?", "const": True} if is_bool else {}
        group = parser.add_argument_group(f.metadata["section"]) if f.metadata["section"] else group
        group.add_argument(
            f"--{f.name}",
            type=str if repeat else parse_bool if is_bool else parse_auto if auto else f.type,
            choices=choices,
            default=hidden,
            metavar=None if choices else METAVARS.get(f.type, f.name.upper().split("_")[-1]),
            help=text,
            **extra,
        )
    return parser


def yaml_flags(path: str, names: list[str], removed: dict[str, str] | None = None) -> list[str]:
    """Turn a flat YAML mapping into flags, so that it passes the same checks as the command line.

    The keys stay as they are: one that is known by another name too.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        settings = yaml.safe_load(text) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"got --config {path}: {error}; expected a readable YAML file") from None
    need(isinstance(settings, dict), f"got --config {path} without 'key: value' lines; expected those")
    keys = [key.value for key, _ in getattr(yaml.compose(text), "value", [])]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    need(not twice, f"{path}: got the key {twice!r} twice; expected each once")
    flags = []
    said = {str(key): str(value) for key, value in settings.items()}
    for key, value in settings.items():
        gone = (removed or {}).get(str(key))
        need(not gone, f"{path}: got {key!r}, which was removed; try {gone}")
        try_one = "; " * bool(near := relation(str(key), names, said)) + near or suggest(str(key), names, 0.7)
        known = own_name(str(key), names)
        need(known, f"{path}: got unknown key {key!r}; expected a setting of --help{try_one}")
        need(value is not None, f"{path}: got no value for {key!r}; expected one; try to leave the line out")
        for item in value if isinstance(value, list) else [value]:
            item = json.dumps(item) if isinstance(item, dict) else item
            flags.append(f"--{key}={'true' if item is True else 'false' if item is False else item}")
    return flags


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


def parse_settings(argv: list[str], config_class, description: str):
    """Return the settings of a command line: defaults, then --config, then flags; a later one wins."""
    parser, words = build_parser(config_class, description), []
    for flag in ("--data", "--eval_data"):
        if sum(word.split("=")[0].replace("-", "_") == flag.replace("-", "_") for word in argv) > 1:
            say(f"note: {flag} is given more than once and the last one counts; data_loader.py joins files")
    names = [f.name for f in dataclasses.fields(config_class)]
    path = flag_values(argv).get("config")
    if path:
        words = yaml_flags(path, names, config_class.removed)
        lists = [f.name for f in dataclasses.fields(config_class) if f.type == list[str]]
        keys = [word.removeprefix("--").split("=")[0] for word in words]
        several = next((key for key in keys if keys.count(key) > 1 and own_name(key, names) not in lists), None)
        need(not several, f"{path}: got a list of values for {several!r}; expected one")
    in_file = vars(parser.parse_args(in_own_words(words, names)))
    flags = vars(parse_flags(parser, argv, in_file, config_class.removed))
    flags.pop("config", None)
    given = {name: value for name, value in {**in_file, **flags}.items() if value is not None}  # None is auto
    config = config_class(**given)
    config.given = frozenset(given)
    check_units(dataclasses.asdict(config), [*words, *argv])
    return config


def check_numbers(config) -> None:
    """Raise UserError for a number that is not finite, below 0, or 0 where its setting says `positive`."""
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if isinstance(value, int | float):
            positive = f.metadata["positive"]
            ok = math.isfinite(value) and (value > 0 if positive else value >= 0)
            need(ok, f"got {f.name} {value}; expected {'more than 0' if positive else '0 or more'}")


# ----------------------------------------------------------------------- processes (src/parts/foundation/processes.py)

GRACE_S = 5.0  # seconds for what a KeyboardInterrupt closes, before a run that was to end at once is ended
WAIT = datetime.timedelta(minutes=30)  # longest wait of a process for the others, whose rollouts may take longer
CGROUPS = Path("/sys/fs/cgroup")
SLOWER = 3.0  # a step that takes this many times the fastest one: other programs may have taken the cores
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # of glibc's malloc.h
GAIN = 1.3  # one thread must be this much faster than all of them


def lazy_module(name: str):
    """A module that is imported at its first use, so that --help answers at once."""

    class LazyModule:
        """Passes every attribute on to the module; `__getattr__` would take five times as long."""

        def __getattribute__(self, attribute: str):
            module = sys.modules.get(name)
            if module is None or getattr(module.__spec__, "_initializing", False):  # perhaps in another thread
                module = importlib.import_module(name)
            return getattr(module, attribute)

    return LazyModule()


torch, np, transformers = map(lazy_module, ("torch", "numpy", "transformers"))


def world() -> tuple[int, int]:
    """(rank, number of processes) of a torchrun launch; (0, 1) otherwise."""
    if "torch" not in sys.modules:  # so nobody is in a group, and --help must not import torch
        return 0, 1
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def dealt(sizes: list[int], kinds: list, processes: int, slack: float = 0.05) -> list[list[int]]:
    """Which rows each process takes, so that the sums of their sizes are alike; the same answer on every process.

    The largest goes first, to whom has least. Rows of one kind are dealt as one; as long as a process has more than
    `slack` above its fair share, the largest such bundle that it holds is dealt in two halves.
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


def gather_rows(mine: list, error: BaseException | None = None, shares: list[list[int]] | None = None) -> list:
    """Merge every process's rows into the order of the batch; an error of one is raised by all.

    Args:
        shares: which rows of the batch each process has; None: rank::world.
    """
    size = world()[1]
    if size == 1:
        if error:
            raise error
        return mine
    import torch.distributed as dist

    parts = [None] * size
    dist.all_gather_object(parts, (mine, error))
    for _, failure in parts:
        if failure:
            raise failure
    merged = [None] * sum(len(rows) for rows, _ in parts)
    for i, (rows, _) in enumerate(parts):
        for place, row in zip(shares[i] if shares else range(i, len(merged), size), rows, strict=True):
            merged[place] = row
    return merged


def device_name(config: BaseConfig) -> str:
    """The device that --device names; auto is a CUDA GPU, else the CPU."""
    import torch

    name = config.device
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    able = here.get(name.split(":")[0] if name.startswith("cuda:") else name, False)
    need(able, f"got --device {name}; expected auto, cpu, cuda[:N] or mps, on a machine that has it; try --device cpu")
    return name


def start_processes(config: BaseConfig):
    """Return this process's device; join the process group of a torchrun launch."""
    import torch
    import torch.distributed as dist

    size = int(os.environ.get("WORLD_SIZE", "1"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))  # processes on this machine
    need(
        local_size == 1 or not config.device.startswith("cuda:"),
        f"got --device {config.device} for {local_size} processes on a machine; expected a GPU for each; try --device "
        "cuda, and to choose GPUs CUDA_VISIBLE_DEVICES=0,1 before torchrun",
    )
    name = device_name(config)
    if size > 1 and not dist.is_initialized():
        if name == "cuda":
            gpus = torch.cuda.device_count()
            need(
                int(os.environ["LOCAL_RANK"]) < gpus,  # each process may see a GPU of its own alone
                f"got {local_size} processes and {gpus} GPUs on a machine; expected a GPU for each; try torchrun "
                f"--nproc_per_node {gpus}",
            )
            name = f"cuda:{os.environ['LOCAL_RANK']}"
        # its functions have the group of their import as a default, and so would keep it, and its threads, to the end
        import torch.distributed.nn.functional

        dist.init_process_group("cpu:gloo,cuda:nccl" if name.startswith("cuda") else "gloo", timeout=WAIT)
    device = torch.device(name)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # where streams and graphs are made
    THREADS.begin(config, device)
    return device


def group_folders(groups: Path, listing: str, controller: str) -> list[Path]:
    """The folders of this process's cgroups that may limit it, by /proc/self/cgroup; inner ones first."""
    folders = []
    for line in listing.splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds or controller in kinds.split(","):
            inner = groups / kinds / path.lstrip("/")
            folders += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(groups / kinds)]
    return folders


def cpu_limit(proc: Path = Path("/proc"), groups: Path = CGROUPS) -> int:
    """CPUs that this process may use, by its affinity and the quotas of its cgroups."""
    limit = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    listing = proc / "self" / "cgroup"
    for folder in group_folders(groups, listing.read_text(), "cpu") if listing.exists() else []:
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # of version 2 and 1
            if all((folder / name).exists() for name in names):
                quota, period = " ".join((folder / name).read_text() for name in names).split()
                if quota not in ("max", "-1"):
                    limit = min(limit, math.ceil(int(quota) / int(period)))
    return max(limit, 1)


def wait_passively() -> None:
    """Let idle OpenMP threads leave their core to other programs after some microseconds; call it before torch loads.

    By default they spin for milliseconds: three runs on two cores then wait for each other most of the time.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


def use_huge_pages() -> None:
    """Let torch take large tensors from huge pages, where Linux has them; call it before torch loads.

    Each large tensor gets fresh pages. Of 4 KiB each, they take a fifth of an update's time on a real model. malloc's
    thresholds get the values to which it raises them itself, but not where memory is aligned, as huge pages are.
    """
    if sys.platform != "linux" or "THP_MEM_ALLOC_ENABLE" in os.environ:
        return
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in musl
    if mallopt:
        mallopt(M_MMAP_THRESHOLD, 2**25)
        mallopt(M_TRIM_THRESHOLD, 2**26)


class CpuThreads:
    """The number of threads that compute on a CPU: all it may use, or one where other programs need the cores.

    OMP_NUM_THREADS or --threads N set it; then nothing is measured. Results differ by rounding at most.
    """

    def __init__(self):
        self.most, self.fastest, self.looked = 0, None, 0.0

    def begin(self, config: BaseConfig, device) -> None:
        """Choose for a run on a device."""
        import torch

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
        """Look again after a step that was several times slower than the fastest, and now and then with one thread."""
        import torch

        if not self.most:
            return
        fewer = torch.get_num_threads() < self.most and time.perf_counter() - self.looked > 60
        if (self.fastest and seconds > SLOWER * self.fastest) or fewer:
            self.fastest = None
            self.choose()
        else:
            self.fastest = min(seconds, self.fastest or seconds)

    def choose(self) -> None:
        """Time a few matrix products with one thread and with all, and keep what is faster."""
        import torch

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


def in_group() -> bool:
    """Whether this process belongs to a group of several."""
    return world()[1] > 1


def leave_processes() -> None:
    """Leave the process group, if there is one; every process must call it, as NCCL waits for those that do not."""
    if in_group():
        import torch.distributed as dist

        dist.destroy_process_group()


def end_at_once(code: int) -> None:
    """End this process and those that multiprocessing has started, whatever they wait for."""
    for child in sys.modules["multiprocessing"].active_children() if "multiprocessing" in sys.modules else ():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


class StopRequested(BaseException):
    """A signal asked for the end, and nothing of the step under way has changed the run yet."""

    def __init__(self, signum: int):
        super().__init__(signum)
        self.signum = signum


class StopRequest:
    """Lets the step under way finish after SIGTERM or SIGINT; a second signal ends the run at once.

    The second raises KeyboardInterrupt; if a reward swallows it, the process exits after GRACE_S. torchrun kills soon
    after SIGTERM, so under it the step is left before its update if an earlier one can be saved.
    """

    current = None  # the one that has the signals

    def __init__(self):
        self.signum, self.earlier, self.end = 0, {}, None
        self.can_save, self.leaving = False, False  # there is a step to save; nothing would be lost now
        if threading.current_thread() is threading.main_thread():  # signals reach no other
            self.earlier = {n: signal.signal(n, self.handle) for n in (signal.SIGTERM, signal.SIGINT)}
            StopRequest.current = self

    def restore(self) -> None:
        """Put the earlier handlers back."""
        StopRequest.current = None
        if self.end:
            self.end.cancel()
        for signum, handler in self.earlier.items():
            signal.signal(signum, handler)

    def handle(self, signum, frame) -> None:
        """Signal handler."""
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
        """The signal that any process got, 0 for none."""
        return max(gather_rows([self.signum]))

    def leaves_steps(self) -> bool:
        """Whether a step may be left before its update."""
        return self.can_save and "TORCHELASTIC_RUN_ID" in os.environ


@contextlib.contextmanager
def leaving_early() -> Iterator[None]:
    """A block that changes nothing of a run: a signal may end it by StopRequested, in this process alone."""
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
    """Set up libraries: nothing written among our lines, no idle cores held, huge pages, no fragments in GPU memory.

    What the user has set stays.

    Args:
        vllm: samples in this process; its memory pool does not work with segments that grow.
    """
    wait_passively()
    use_huge_pages()
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")  # the first since torch 2.9
    if not vllm and not any(name in os.environ for name in names):
        os.environ[names[0]] = "expandable_segments:True"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # misses a kernel for inference with 4 bits on a CPU


def exit_code(
    run,
    mend: str = "fix it and try --resume",
    stopped: str = "stopped at once; if a checkpoint was saved, --resume continues from it",
) -> int:
    """Call run() and return its exit code, or that of the error which ended it.

    Args:
        mend: what to try after a full disk, say.
        stopped: what is left after Ctrl-C.
    """
    try:
        code = run()
    except BaseException as error:
        code = code_of(error, mend, stopped)
        if in_group():  # others may wait for this process in a sum, and NCCL's goodbye would wait for them
            end_at_once(code)
        return code
    leave_processes()
    return code


def code_of(error: BaseException, mend: str, stopped: str) -> int:
    """Print what ended a run and return the exit code; of a process alone, raise what no message is known for."""
    if isinstance(error, UserError):
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.code
    if isinstance(error, Exception) and is_out_of_memory(error):
        advice = "a smaller model or batch, or a machine with more"
        print(f"error: {memory_shortage('in this program', error, advice)}", file=sys.stderr, flush=True)
        return 2
    if isinstance(error, KeyboardInterrupt):
        say(stopped)
        if __name__ == "__main__":  # threads and pools of a reward may never end
            end_at_once(130)
        return 130
    is_full = is_disk_full(error)
    if is_full or isinstance(error, OSError):
        got = f"no space left on the disk ({str(error).partition(chr(10))[0]})" if is_full else error
        print(f"error: got {got}; expected to read and write files; {mend}", file=sys.stderr)
        return 2
    if not in_group():
        raise error
    traceback.print_exception(error)
    return 1


# --------------------------------------------------------------------------- data files (src/parts/data/data_files.py)

HEAD_BYTES = 1 << 18  # bytes at the beginning of a file that tell what it is
MAX_BYTES = 8 << 30  # what one packed or parquet file may unpack to
EXPORT = "unpacking it, or exporting its rows as JSONL or CSV UTF-8"
# PDF, zip and Excel, old Office, Arrow, pickle, bzip2, xz, 7z, RAR, zstd; other binary files have zero bytes
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
# columns of prompts: those that always ask, and those that do in one file and are a word about the rows in another
ASKS = {
    *("prompt", "question", "problem", "query", "instruction", "messages", "conversations", "conversation"),
    *("chosen", "completion"),
}
WEAK = {"text", "input", "description"}
OTHER_ENCODING = "data_loader.py --encoding NAME, such as cp1252 or gb18030, if the whole file is in it"
OTHER_BYTES = re.compile("[\udc80-\udcff]")  # as surrogateescape reads bytes that the encoding does not have
SEPARATORS = (",", ";", "\t", "|")
LONGEST_CELL = 256 << 20  # characters of a cell
# names of columns, which no row of data holds
HEADER_NAMES = {*ASKS, *WEAK, "answer", "response", "output", "solution", "rejected", "choices", "id"}


class Unpacked(gzip.GzipFile):
    """A gzip file of at most MAX_BYTES unpacked; UserError with its name if it is damaged."""

    def read(self, size=-1) -> bytes:
        try:
            data = super().read(HEAD_BYTES if size < 0 else size)  # who reads all repeats until it is empty
        except Exception as error:  # zlib, gzip and the system each have their own
            got = f"{self.name}: got compressed bytes that cannot be read ({error})"
            raise UserError(f"{got}; expected an intact file") from None
        got = f"{self.name}: got more than {MAX_BYTES} unpacked bytes"
        need(self.tell() <= MAX_BYTES, f"{got}; expected at most that many; try unpacking it first if you trust it")
        return data


def open_text(source: str, form: str | None, encoding: str | None = None) -> tuple:
    """Open a file or stdin (`-`) as text without a byte order mark; returns (stream, form).

    Bytes show whether it is packed, as names are often wrong. Text is UTF-8, or UTF-16 with a byte order mark, unless
    `encoding` is given; other bytes stay as lone surrogates, see `flaw_of_bytes`. A missing form is detected.
    UserError where the file holds no rows: an HTML page, a pickle, a Git LFS pointer.
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
        told, encoding = bool(encoding), encoding or ("utf-16" if wide else "utf-8-sig")
        text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
        refuse_no_data(text.encode() if told or wide else head.removeprefix(codecs.BOM_UTF8), name, form)
        form = form_of_text(text, name, form)
        opened.pop_all()
    newline = "" if form in ("csv", "tsv") else "\n"
    return io.TextIOWrapper(raw, encoding, "surrogateescape", newline=newline), form


def flaw_of_bytes(text: str) -> str | None:
    """What is wrong with a text of `open_text` that has a byte which is not of its encoding."""
    other = OTHER_BYTES.search(text)
    return other and f"byte {ord(other[0]) - 0xDC00:#04x}, which is not UTF-8"


def form_of_text(head: str, name: str, form: str | None) -> str:
    """The form that a text shows, where it has no name that tells it, or one that tells which JSON it is."""
    text = head.lstrip()
    if form is None:
        form = "jsonl" if text.startswith(("{", "[")) else "txt"
    elif form in ("txt", "csv", "tsv") and holds_json(text):
        got = f"{name}: got JSON in a file that is read as {form}"
        raise UserError(f"{got}; expected text; try renaming it to end in .json")
    if form == "txt":
        names = re.split(r"[,;\t]", text.partition("\n")[0].strip().lower())
        got = f"{name}: got a first line of column names, {', '.join(names)[:60]}, in a file with one prompt per line"
        is_table = len(names) > 1 and {*names} & (ASKS | WEAK) and all(map(str.isidentifier, names))
        need(not is_table, f"{got}; expected prompts; try renaming it to end in .csv")
    return "json" if form == "jsonl" and not begins_lines(text) else form


def begins_lines(text: str) -> bool:
    """Whether a JSON text has a value a line, the first perhaps broken, not one array or object."""
    first, _, rest = text.partition("\n")
    if not rest.strip() or first.startswith("["):
        return bool(rest.strip()) and first.rstrip().endswith("]")
    return first.strip() != "{"


def holds_json(text: str) -> bool:
    """Whether a text is JSON: its first line is an object or array, or all of it is one."""
    if not text.startswith(("{", "[")):
        return False
    for part in (text.partition("\n")[0], text):
        with contextlib.suppress(ValueError, RecursionError):
            return isinstance(json.loads(part), dict | list)
    return len(text) >= HEAD_BYTES  # a first line longer than that


def refuse_no_data(head: bytes, name: str, form: str | None) -> None:
    """Raise UserError where the first bytes are those of something that holds no rows."""
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
    """(line, row or its flaw) below the header of a CSV text with the expected separator; every cell is text."""
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
    """The names of the columns: without blanks around them, and without the empty columns that spreadsheets append."""
    names = filled([cell.strip() for cell in header])
    flaw = flaw_of_bytes("".join(names))
    need(not flaw, f"{where}: got {flaw}; expected UTF-8 text; try {OTHER_ENCODING}")
    mark = ",".join(names)
    got = f"{where}: got Excel's mark {mark!r}"
    need(mark[:4] != "sep=", f"{got}; expected the names of columns; try deleting the line")
    twice = [column for column, count in Counter(names).items() if count > 1]
    need(not twice, f"{where}: got the column {twice[:1]} twice; expected each name once; try renaming one")
    text = next((cell for cell in names if len(cell) > 60 or cell[-1:] in tuple(".?!:。？！")), None)
    if text and not HEADER_NAMES & {cell.casefold() for cell in names}:
        say(f"warning: {where}: got the column name {text[:60]!r}; if it is data, put a line of column names above it")
    return names


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
        if flaw := flaw_of_bytes("".join(cells)):
            yield start + 1, RowFlaw("row", flaw, "UTF-8 text", OTHER_ENCODING)
        elif len(cells) != len(names):
            expected = f"{len(names)} as in the header {', '.join(names)[:60]}"
            advice = f"quoting fields that hold {delimiter!r}, or a header alone in the first line"
            yield start + 1, RowFlaw("row", f"{len(cells)} fields", expected, advice)
        else:
            yield start + 1, dict(zip(names, cells, strict=True))


def filled(cells: list[str]) -> list[str]:
    """The cells without empty ones at the end."""
    size = next((size for size in range(len(cells), 0, -1) if cells[size - 1].strip()), 0)
    return cells[:size]


def first_records(text: str, delimiter: str, **form) -> list[list[str]]:
    """Return the first 50 records that are not empty, up to the first that is not valid CSV."""
    reader, records = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True, **form), []
    with contextlib.suppress(csv.Error):
        records += (cells for cells in itertools.islice(reader, 50) if any(cells))
    return records


def separator_of(text: str, delimiter: str, name: str) -> str:
    """What stands between the columns: as expected where that parts the header, else what parts it and all rows."""
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
LISTS = {
    *("data", "rows", "examples", "samples", "items", "records", "instances", "entries", "tasks", "problems"),
    *("prompts", "dataset", "train", "test", "validation", "valid", "dev", "eval", "questions", "paragraphs", "qas"),
}
CONTEXT = {"text", "context", "passage", "article", "story", "paragraphs", "document", "table", "background", "body"}
CHAT = re.compile(r"""\s*(?:\[\s*)?\{\s*(["'])(role|from|content|value)\1\s*:""")
# what begins a turn in dialogues that are one text: HH-RLHF, Guanaco and Alpaca, ChatML, Llama 3 and 2, Glaive
SPEAKER = re.compile(
    r"(?:\A|\n\n)(Human|Assistant): ?|### ?(Human|User|Assistant|System|Instruction|Input|Response): ?"
    r"|<\|im_start\|>(\w+)\n|<\|start_header_id\|>(\w+)<\|end_header_id\|>|(\[/?INST\])|(?:\A|\n)(USER|ASSISTANT): "
)
DIALOGUE = re.compile(r"\s*(user|human)\s*:.+?\s(assistant|ai)\s*:\s*\S", re.IGNORECASE | re.DOTALL)
TURN_ENDS = re.compile(r"</?s>|<\|(im_end|eot_id|endoftext|begin_of_text)\|>")
ANSWERERS = ("assistant", "response", "[/inst]")
CHAT_COLUMNS = (*sorted(ASKS), "rejected", "response", "output", "text", "input", "history")


def rows_in(value: dict, name: str, known=()) -> list | None:
    """The rows inside the only object of a file; None where it is a row itself, UserError where that is unclear.

    `known` are columns that make it a row, beside the usual ones.
    """
    if (table := rows_of_columns(value, name, known)) is not None:
        return table
    only = next(iter(value.values())) if len(value) == 1 else None
    if isinstance(only, dict) and only:
        return rows_in(only, name, known)
    lists = {key: item for key, item in value.items() if isinstance(item, list) and item and isinstance(item[0], dict)}
    holders = {key: item for key, item in lists.items() if key in LISTS or is_row(item[0])}
    asks, rows = value.keys() & {*ASKS, *known}, any(is_row(holders[key][0]) for key in LISTS & holders.keys())
    if not holders or (asks and (value.keys() & {*ANSWERED, *known} or not rows)):
        return None
    key, items = next(iter(holders.items()))
    cases = {"input", "output"} <= items[0].keys() and value.keys() & WEAK  # of a programming task
    if len(holders) == 1 and not asks and not cases and not value.keys() & CONTEXT:
        if unused := [other for other in value if other != key]:
            say(f"{name}: read the rows of {key!r}; not used: {', '.join(unused)[:200]}")
        return items
    code = f"import json; json.dump(json.load(open({name!r}))[{key!r}], open('rows.json', 'w'))"
    got = f"{name}: got one object that holds {' and '.join(map(repr, holders))}; it is not clear which list is meant"
    raise UserError(f'{got}; expected JSONL, or one list of objects; try extracting one: python -c "{code}"')


def is_row(item: dict) -> bool:
    """Whether an object has a field that asks, or that holds questions."""
    return bool(item.keys() & {*ASKS, "questions", "paragraphs", "qas"})


def rows_of_columns(value: dict, name: str, known) -> list[dict] | None:
    """The rows of an object whose values are columns: lists, or objects by index, as pandas' to_json writes them."""
    asking = [value[key] for key in value.keys() & {*ASKS, *WEAK, *known}]
    if asking and all(isinstance(item, dict) and item and all(map(str.isdigit, item)) for item in value.values()):
        places = [*max(value.values(), key=len)]
        return [{key: column.get(place) for key, column in value.items()} for place in places]
    lists = len(value) > 1 and all(isinstance(item, list) for item in value.values())
    if not asking or not lists or not all(map(is_column, asking)):
        return None
    sizes = {key: len(column) for key, column in value.items()}
    listed = ", ".join(f"{key}: {size}" for key, size in sizes.items())[:200]
    got = f"{name}: got columns of unequal length ({listed})"
    need(len({*sizes.values()}) == 1, f"{got}; expected one value for each row; try JSONL, one object a line")
    return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]


def is_column(items: list) -> bool:
    """Whether a list holds prompts, texts or messages, not the messages of one."""
    texts = all(isinstance(item, str) and item.strip() for item in items)
    return bool(items) and (texts or all(isinstance(item, list) and item for item in items))


def with_chats(row: dict) -> dict:
    """The row with messages instead of their JSON text, as cells of a spreadsheet hold them; other texts stay.

    RowFlaw where such JSON is broken, or written as Python prints it.
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
                continue  # a text that begins with messages
            got = f"chat messages as Python prints them, {text[:40]!r}" if start[1] == "'" else f"broken JSON ({error})"
            advice = "json.dumps for the column, or pandas' to_json(FILE, orient='records', lines=True) for all"
            raise RowFlaw(name, got, "a list of messages, or its JSON text", advice) from None
        messages = [messages] if isinstance(messages, dict) else messages
        pairs = ({"role", "content"}, {"from", "value"})
        if all(isinstance(m, dict) and any(pair <= m.keys() for pair in pairs) for m in messages):
            chats[name] = messages
    return {**row, **chats} if chats else row


def is_dialogue(text) -> bool:
    """Whether a value is a dialogue as one text, `User: … Assistant: …`; `<think>` at the end opens an answer."""
    return isinstance(text, str) and DIALOGUE.match(text) is not None and not text.rstrip().endswith("<think>")


def holds_answer(text) -> bool:
    """Whether a value is a dialogue as one text that ends with an answer, such as `### Human: … ### Assistant: …`."""
    answers = isinstance(text, str) and any(word in text.lower() for word in ANSWERERS)
    marks = list(SPEAKER.finditer(text)) if answers else []
    if len(marks) < 2:
        return False
    first, last = (next(filter(None, mark.groups())).lower() for mark in (marks[0], marks[-1]))
    preface = TURN_ENDS.sub("", text[: marks[0].start()]).strip()
    begins = first not in ANSWERERS and (not preface or preface.startswith("Below is an instruction"))  # Alpaca's
    return begins and last in ANSWERERS and TURN_ENDS.sub("", text[marks[-1].end() :]).strip() != ""


# --------------------------------------------------------------------------------------- rows (src/parts/data/rows.py)

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
MISNAMED = {  # as other spellings and ShareGPT have them
    **{role: role for role in ("system", "user", "assistant", "tool")},
    **{"human": "user", "gpt": "assistant", "bot": "assistant"},
}
JSON_SPACE = re.compile(r"[ \t\n\r]*")


def whole_rows(records: Iterable[tuple[int, dict | RowFlaw]], name: str) -> list[dict]:
    """The rows of records; UserError names the line of the first that is none."""
    rows = []
    for line, row in records:
        need(not isinstance(row, RowFlaw), f"{name}:{line}: {row}")
        rows.append(row)
    return rows


def unique(pairs: list[tuple]) -> dict:
    """A JSON object; RowFlaw where a key stands twice, of which Python would keep the last."""
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise RowFlaw(twice, "the key twice in one object", "each key once", "deleting one of them")
    return row


def plain_json(text: str):
    """The value of JSON text; RowFlaw where it is invalid or has a key twice in one object."""
    if flaw := flaw_of_bytes(text):
        raise RowFlaw("row", flaw, "UTF-8 text", OTHER_ENCODING)
    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise RowFlaw("row", "nesting too deep", "fewer levels", "storing the inner part as JSON text") from None
    except ValueError as error:
        at = getattr(error, "pos", 0)
        got = f"invalid JSON ({error}, near {text[max(at - 20, 0) : at + 20]!r})"
        raise RowFlaw("row", got, "one JSON object") from None


def as_row(value) -> dict:
    """A JSON value that is a row; RowFlaw for others, with advice of its own for bare messages."""
    if isinstance(value, dict):
        return value
    is_chat = isinstance(value, list) and value and isinstance(value[0], dict)
    advice = ['{"messages": […]} for each row, with the answer in its own field'] if is_chat else []
    raise RowFlaw("row", f"{type(value).__name__} {value!r:.60}", "a JSON object with named fields", *advice)


def json_lines(stream: Iterable[str]) -> Iterator[tuple[int, dict | RowFlaw]]:
    """(line, row or its flaw) of JSONL. Lines end at line feeds only; blank ones are counted, not read."""
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                yield number, as_row(plain_json(line))
            except RowFlaw as flaw:
                flaw.parts["row"] = line.rstrip("\r\n")
                yield number, flaw


def json_records(text: str, name: str, known) -> Iterator[tuple[int, dict | RowFlaw]]:
    """(number, row or its flaw) of a JSON file: an array, an object that holds the rows, or objects in a row."""
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
        value = values[0]
        inner = rows_in(value, name, known) if isinstance(value, dict) else value
        values = inner if isinstance(inner, list) else values
    for number, value in enumerate(values, start=1):
        try:
            yield number, as_row(value)
        except RowFlaw as flaw:
            yield number, flaw


def parquet_records(source: str) -> Iterator[tuple[int, dict]]:
    """(number, row) of a parquet file, 1000 read at a time."""
    import pyarrow.parquet

    number = 0
    try:
        with open(source, "rb") as raw:
            refuse_no_data(raw.peek(), source, "parquet")
            file = pyarrow.parquet.ParquetFile(raw)
            size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
            need(
                size <= MAX_BYTES,
                f"{source}: got {size} unpacked bytes; expected {MAX_BYTES} at most; try parts",
            )
            for batch in file.iter_batches(1000):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, ValueError, pyarrow.ArrowException, RecursionError) as error:
        raise UserError(f"{source}: got unreadable parquet ({str(error)[:200]}); expected an intact file") from None


def prompt_lines(stream: Iterable[str]) -> Iterator[tuple[int, dict | RowFlaw]]:
    """(line, row or its flaw) of one prompt a line; blank ones are skipped."""
    for number, line in enumerate(stream, start=1):
        if flaw := flaw_of_bytes(line):
            yield number, RowFlaw("prompt", flaw, "UTF-8 text", OTHER_ENCODING)
        elif line.strip():
            yield number, {"prompt": line.strip("\r\n")}


def file_records(source: str, form: str | None, encoding=None, known=()) -> Iterator[tuple[int, dict | RowFlaw]]:
    """(line or number, row or its flaw) of a file, or of stdin (`-`).

    Args:
        form: jsonl, json, csv, tsv, txt or parquet; None: told from the text.
        encoding: of the text; None: as the file shows.
        known: columns that make an object a row, beside the usual ones.
    """
    name = "stdin" if source == "-" else source
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
                begun = list(itertools.islice(stream, 2))  # shows the form if the first line exceeds the head
                if asked != "json" and begins_lines("".join(begun)):
                    yield from json_lines(itertools.chain(begun, stream))
                else:
                    yield from json_records("".join(begun) + stream.read(), name, known)
            else:
                yield from json_lines(stream)
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{name}: got bytes that cannot be read ({error}); expected an intact file") from None


def is_hub_id(source: str) -> bool:
    """Whether a name, not a local path, could be `owner/name` or `name` on the hub."""
    return not Path(source).exists() and not source.startswith((".", "/", "~")) and source.count("/") <= 1


def hub_rows(source: str) -> Iterator[dict]:
    """Rows of a data set of the hub, `owner/name[:config][@split]`; code that comes with it is never run."""
    import datasets

    name, _, split = source.partition("@")
    name, _, subset = name.partition(":")
    offline = not hub_is_reached()
    datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE or offline
    try:
        yield from datasets.load_dataset(name, subset or None, split=split or "train")
    except Exception as error:  # every layer below has its own
        why = "and the hub cannot be reached" if offline else "and the hub says"
        raise UserError(f"got data {source!r}: no such file, {why}: {str(error)[:300]}") from None


@functools.cache
def hub_is_reached() -> bool:
    """Whether the hub answers within 5 seconds; if not, its client reads the cache alone, without minutes of trying."""
    import huggingface_hub.constants as hub

    if hub.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(hub.ENDPOINT, method="HEAD"), timeout=5).close()
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError) or isinstance(getattr(error, "reason", None), ssl.SSLError):
            return True  # an answer too; certificates of a proxy may be known to the hub's client alone
        hub.HF_HUB_OFFLINE = True
        return False
    return True


def read_rows(source: str) -> list[dict]:
    """Read rows from a JSONL, JSON, CSV, TSV or parquet file, or from the hub: `owner/name[:config][@split]`."""
    form, is_file, chats = SUFFIXES.get(Path(source).suffix.lower()), Path(source).is_file(), []
    got = f"got data {source!r}"
    known = is_file or (is_hub_id(source) and not form)
    need(known, f"{got}, which is not a file; expected JSONL, JSON, CSV, parquet or a hub id")
    names = ", ".join(SUFFIXES)
    need(form or not is_file, f"{got}; expected a name ending in {names}; try data_loader.py for others")
    rows = whole_rows(file_records(source, form), source) if is_file else hub_rows(source)
    for row in rows:
        try:
            chats.append(with_chats(row))
        except RowFlaw as flaw:
            raise UserError(f"{source}, row {len(chats) + 1}: {flaw}") from None
    return chats


def check_unicode(text: str, where: str = "") -> None:
    """Raise UserError if the text has half a surrogate pair, which no tokenizer takes and no file can hold."""
    half = re.search("[\ud800-\udfff]", text)
    got = half and f"got {text[max(0, half.start() - 20) : half.end() + 20]!r} with half a surrogate pair"
    need(not half, f"{where}{got}; expected Unicode text; try cutting the source between characters")


def check_prompt(prompt, where: str) -> None:
    """Raise UserError unless the prompt is a non-empty string or a list of chat messages."""
    is_text = isinstance(prompt, str) and prompt.strip()
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

_TO = r"(?:to|for|of|auf|für|zu|à|a (?:la|esta)|de (?:la|cette)|du|para)\b[^\n.:：=]{0,80}?"
_IS = (
    r"(?:\b(?:is|are|equals|(?:must|should|will|would) be|ist|lautet|beträgt|wäre|est|sera|serait|es|será|sería)\b"
    r"|\b(?:é|è|это|adalah|là|jest)\b|[:：=]|\n)"
)
_OPTION = r"(?:(?<![^\n*])|\b(?:correct|right|best|the|my|die|richtige|la|bonne|mejor)[*_ ]{1,3})"
_ANSWERS = {  # a word that the text must hold, in lower case: the noun that an answer follows
    **{word: rf"\b{word}" for word in "antwort lösung richtig réponse respuesta solución resposta risposta".split()},
    **{word: rf"\b{word}" for word in "ответ antwoord odpowiedź cevap jawaban jibu उत्तर উত্তর సమాధానం คำตอบ".split()},
    **{word: rf"\b{word}" for word in ("la solution", "đáp án", "الجواب", "الإجابة")},
    **{word: _OPTION + word for word in ("option", "choice", "opción", "alternativa")},
    "ans": r"\bans(?:wer)?",
}
_MARKS = {
    **{
        word: rf"{noun}(?!\w)[*_ ]*(?:{_TO}|choice|option|finale?|correct[ea]?|exacte?)?[*_ ]*{_IS}[\s:：*_]*"
        for word, noun in _ANSWERS.items()
    },
    **{word: rf"\bi(?:'d| would|'ll| will)? {word}\b[\s:*_]*" for word in ("choose", "pick", "select", "go with")},
    **{word: rf"\b{word}\b[\s:*_]*" for word in ("ich wähle", "je choisis", "elijo", "escojo")},
    **{
        word: rf"{word}(?:应该|應該|应|應)?(?:是|为|為|选|選|[ *]{{0,3}}[:：=])[\s:：*_]*"
        for word in ("答案", "正确选项", "正確選項")
    },
    **{
        word: r"(?:(?<![^\s，。；：,.;:、*#])|(?<=[故应應该当當我题題])|(?<=因此|所以))"
        rf"(?:应|應)?{word}[择擇]?(?:是|为|為)?[:：]?(?=[\s（(*]{{0,3}}[A-ZＡ-Ｚ](?![A-Za-z]))[\s:：*_]*"
        for word in ("选", "選")
    },
    **{word: rf"(?<!\w){word}(?:は|[ *]{{0,3}}[:：=])[、\s:：*_]*" for word in ("答え", "正解", "解答", "答")},
    "####": r"(?<!#)####(?!#)[ \t*_]*",
}
_BECAUSE = r"because|since|due to|weil|parce qu\w+|puisque|porque|ya que"
_IS_RIGHT = (
    r"(?:is|ist|est|es)[ *]{1,3}(?:(?:the|my|die|la|el)\s)?(?:only\s|most\s)?"
    r"(?:correct[eao]?|right|best|richtige?|bonne|juste|answer|option|choice|antwort|réponse|respuesta)\b"
)
_BEHIND = re.compile(  # a reason, what says that it is right, a remark in brackets, a copula
    rf"(?i:[\s,;:.!*_(–—-]{{1,6}}(?:{_BECAUSE}|{_IS_RIGHT})\b"
    r"|\s?[,;(]\s?(?:which|where|so|as|see|da|denn|siehe|car|voir|pues|véase)\b)"
    r"|(?<=[\dA-Z*)]) {1,3}(?:car|da|denn)\b|[\s,，;；.。(（]{0,4}(?:因为|因為|由于|なぜなら)"
    r"|\s{0,3}(?:(?:是|为)?正确|が(?:正解|正しい))|(?<=[A-ZＡ-Ｚ])\s{0,3}(?:项|項|选项|選項|選択肢)"
    r"|(?:です|である|となります|になります|だ)(?=[。．.!！、\s]|$)"
    r"|\s{0,3}[(（](?i:see|as|from|by|using|siehe|voir|véase|见|如上)[^\d()（）]{2,60}[)）][.。]?$"
)
_BEFORE = re.compile(
    r"(?i)\s*(?:(?:it(?:['’]s| is)|so|hence|thus|therefore|es ist|also|c['’]est|donc|alors|es)\b[\s,:]*"
    r"|(?:所以|因此)[，,]?)+"
)
_COMMA = re.compile(
    r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+(?=[,{])|0(?=[,{])|\d+(?=(?:,|\{,\})(?!\d{3}(?!\d))))(?:,|\{,\})(\d+)(?![.,]?\d)"
)
# digits in groups, as no decimal has them: 1.234.567, 12'500, 1_000; a decimal comma that such groups or € show
_GROUPED = re.compile(
    r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?(?![.,]?\d)|(?<![\w.])\d{1,3}(?:['’_]\d{3})+(?!\w)"
    r"|(?<=€)\s?\d+(?:\.\d{3})*,\d\d?(?![.,]?\d)|(?<![\d.,])\d+(?:\.\d{3})*,\d\d?(?=\s?(?:€|EUR\b))"
)
_LAKHS = re.compile(r"(?<![\d.,])[1-9]\d?(?:,\d\d)+,\d{3}(?![,\d])")  # 1,00,000, as India groups digits


@functools.lru_cache(256)
def _any_of(words: tuple[str, ...]) -> re.Pattern:
    return re.compile("(?i)" + ("|".join(_MARKS[word] for word in words) or "(?!)"))


def marks(text: str) -> Iterator[re.Match]:
    """Find the marks and phrases that an answer follows: `####`, "the answer is", Antwort:, 答案是."""
    lower = text.lower()
    return _any_of(tuple(word for word in _MARKS if word in lower)).finditer(text)


def has_mark(text: str) -> bool:
    """Whether a text states an answer by a mark or phrase."""
    return next(marks(text), None) is not None


def ungrouped(text: str) -> str:
    """The text without what groups digits, where nothing else can be meant; 1.234 is a decimal.

    >>> ungrouped("1.234.567"), ungrouped("12'500"), ungrouped("1.234,50 €"), ungrouped("€1.200")
    ('1234567', '12500', '1234.50 €', '€1.200')
    """
    return _GROUPED.sub(lambda m: re.sub("[.'’_]", "", m[0]).replace(",", "."), text)


def with_point(text: str) -> str:
    """The text with decimal commas as points: 3,5 and 1.234,56 and 0,125; 1,234 and 1,00,234 are in groups."""
    text = _LAKHS.sub(lambda m: m[0].replace(",", ""), ungrouped(text))
    return _COMMA.sub(lambda m: f"{m[1].replace('.', '')}.{m[2]}", text)


def without_words(answer: str) -> str:
    """An answer without words before and after it: "so B", "B because …", "42 (see above)", "B is correct", 42です."""
    start, end = _BEFORE.match(answer), _BEHIND.search(answer)
    short = answer[start.end() if start else 0 : end.start() if end else None]
    return short if short.strip(" \t\n*_") else answer


# ----------------------------------------------------------------------- answer marks (src/parts/data/answer_marks.py)

HASH = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
HEADING = re.compile(
    r"(?i)(\d+[.)] *)?((final )?(answer|solution|result)s?:?|(conclusion|summary|steps?|explanation|introduction"
    r"|overview|notes?|example|verification|check|references|discussion|background)\b[^$\\=]*)"
)
VALUE = re.compile(r"\W*[A-Za-z]\W*|(?!\d+[.)]\s)\S*[\d\\]\S*(?: \S+){0,3}")  # a letter, or a number with its unit
# a sentence ends where another one follows; not after initials and short words: J. K. Rowling, St. Louis
SENTENCE_END = re.compile(
    r"(?<=[\d$)}\]%*])\.[*_]*\s+(?=[A-Z])|(?:(?<=\w{3})|(?<=\A\w))\.[*_]*\s+(?=[A-Z]['\w]*(?: [\w']+){2})|[。！？]"
)
NO_STATEMENT = re.compile(r"(?i)#|(?:i|ich|je|elijo|escojo)\b")  # marks that state no gold
# before a mark: what may open its clause, and what makes a condition of it, or a string in a program
LEAD = re.compile(
    r"(?i)\W*+(?:(?:so|thus|hence|therefore|then|finally|and|the|my|our|final|correct|right|best|die|la|[^\x00-\x7f]++)\W*+)*+"
)
NO_CLAUSE = re.compile(r"""(?i)\b(?:if|whether|unless|when)\b|"|\(f?'""")
NO_PROSE = re.compile(r"(?i)[?&.(]\s*\Z|\A(?:\t|  )|\band\b")  # before `answer =`: of a URL, code or SQL
ARGUMENT = r"(?:\d|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})"
# after \boxed: a brace, a word, or one command with its arguments, as \frac12 and \text{B}, if no formula follows
BOX = re.compile(
    r"\\(?:boxed|fbox)(?![a-z])\s*"
    rf"(?:\{{|([\w-]+|\\(?!left|begin)[A-Za-z]++(?:\[\w+\])?{ARGUMENT}{{0,2}}+(?!\s*(?:\\[A-Za-z]|[\d{{])))|)"
)
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
FLOW = (ast.For, ast.While, ast.If, ast.With)
STATEMENTS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, *FLOW)


def is_heading(text: str, mark: re.Match) -> bool:
    """Whether `####` opens a heading or a comment: a title, a long line, or words with text below them."""
    if mark[0][0] != "#":
        return False
    line, _, below = text[mark.start() + 4 :].partition("\n")
    line = line.strip(" \t*_")
    is_title = HEADING.fullmatch(line) or line.endswith((":", "#")) or len(line) > 80
    return bool(is_title) or (below.strip() != "" and not VALUE.fullmatch(line))


def marked_gold(text: str) -> str:
    """Return the text after the last `####` that is not a heading, or what the last line states, or the whole text."""
    text = text.rpartition("</think>")[2]
    answers = [mark[1] for mark in HASH.finditer(text) if not is_heading(text, mark)]
    return (answers[-1] if answers else stated_gold(text) or text).strip()


def stated_gold(text: str) -> str | None:
    """What a last line such as "Answer: 12" or "So the answer is 12." states, where it is short; a last `<answer>`.

    None where a box is cut off; the last one where a line states several.
    """
    tagged = text.rstrip().removesuffix("</answer>")
    if "<answer>" in tagged and tagged != text.rstrip():
        return tagged.rpartition("<answer>")[2].strip()
    *above, line = text.strip().split("\n")
    line = re.sub(r"(?i)\b(?:solution|result)(?= is\b|\W{0,3}:)", "answer", line)
    found = [mark for mark in [*marks(line)][:-4:-1] if "=" not in mark[0] or is_prose(line, mark, "\n".join(above))]
    said = next(filter(None, (statement(line, mark) for mark in found)), None)
    boxes = None if said is None or boxes_in(text) is None else boxes_in(said)
    return None if boxes is None else [said, *boxes][-1]


def is_prose(line: str, mark: re.Match, above: str) -> bool:
    """Whether `answer =` states one: at the start of a line, and in no program, SQL or URL."""
    before, after = line[: mark.start()], line[mark.end() :].rstrip()
    in_code = NO_PROSE.search(before) or after[:1] == "=" or after[-1:] == ";"
    return bool(LEAD.fullmatch(before)) and not in_code and not is_program(above)


def statement(line: str, mark: re.Match) -> str | None:
    """What follows a mark of an answer in its sentence; None where that is long, no answer, or has a further mark.

    Words are an answer only where the mark opens a clause ("So the answer is Paris"), numbers and formulas anywhere.
    """
    said = without_words(SENTENCE_END.split(line[mark.end() : mark.end() + 300], maxsplit=1)[0]).strip("*_ .")
    clause = re.split(r"[.!?,;:]\s", line[: mark.start()])[-1]
    if NO_STATEMENT.match(mark[0]) or NO_CLAUSE.search(clause) or said.count('"') % 2:
        return None
    words = 0 if VALUE.fullmatch(said) else count_words(said)
    is_short = len(said) <= 100 and words < (6 if LEAD.fullmatch(clause) else 1)
    return said if is_short and re.search(r"\w", said) and not has_mark(said) else None


def count_words(answer: str) -> int:
    """Number of words in an answer, not counting single letters, numbers and LaTeX commands."""
    return len(re.findall(r"[^\W\d_]{2,}", re.sub(r"\\[a-z]+", "", answer)))


def boxes_in(text: str) -> list[str] | None:
    """Contents of the outermost boxes; None if one is not closed."""
    found, at = [], 0
    while m := BOX.search(text, at):
        depth, at = 1, m.end()
        if not m[0].endswith("{"):
            found.append(m[1] or "")
            continue
        for brace in BRACE.finditer(text, at):
            depth += (brace[0] == "{") - (brace[0] == "}")
            if not depth:
                break
        if depth:
            return None
        found.append(text[at : brace.start()])
        at = brace.end()
    return found


def accepted(gold) -> list:
    """The answers that a gold accepts: itself, or the items of a list, of lists inside it too.

    >>> accepted([["NYC", "New York"], ["LA"]]), accepted([[1, 2], [3, 4]]), accepted([[1], [2]])
    (['NYC', 'New York', 'LA'], ['[[1, 2], [3, 4]]'], ['[[1], [2]]'])
    """
    if not isinstance(gold, list | tuple):
        return [gold]
    if is_matrix(gold):
        return [json.dumps(gold, default=str)]
    one_answer = [is_matrix(item) or (is_matrix([item]) and len(item) > 1) for item in gold]
    vectors = [json.dumps(item, default=str) if one else item for item, one in zip(gold, one_answer, strict=True)]
    return [one for item in vectors for one in (item if isinstance(item, list) else [item])]


def is_matrix(value) -> bool:
    """Whether a value is rows of numbers, all of one length; lists of texts are each annotator's."""
    rows = value if isinstance(value, list) and all(isinstance(row, list) for row in value) else []
    plain = all(isinstance(cell, numbers.Number) for row in rows for cell in row)
    return plain and bool(rows) and {*map(len, rows)} == {max(1, len(rows[0]))}


def is_program(text: str) -> bool:
    """Whether a text is Python source that does something."""
    try:
        return any(isinstance(node, STATEMENTS) for node in parse_python(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


# ------------------------------------------------------------------- question parts (src/parts/data/question_parts.py)

SHORT_NOTES = ("narrative", "puzzle", "premises", "clues")  # also a name of one, or how many
# texts that a question is asked about, in the order in which they stand before it
READ_FIRST = (
    *("pre_text", "context", "contexts", "ctx", "passage", "passages", "article", "body", "story", "background"),
    *("document", "documents", "doc", "docs", "paragraph", "paragraphs", "premise", "hypothesis", "support"),
    *("dialogue", "dialog", "schema", "table", "tables", "scenario", "excerpt", *SHORT_NOTES, "post_text"),
)
# perhaps a part of the question, perhaps a note about it
DOUBTFUL = (
    *("hint", "hints", "fact", "facts", "evidence", "evidences", "history", "sentence1", "sentence2", "sent1", "sent2"),
    *("starter_code", "abstract", "essay", "knowledge", "situation", "transcript", "vignette", "email", "snippet"),
    *("constraints", "input_format", "output_format", "input_description", "output_description", "search_results"),
    *("statement", "statements", "claim", "conclusion", "theory"),
    *("source_text", "reference_text", "full_text", "kontext", "textabschnitt", "contexte", "contexto", "passaggio"),
    *("上下文", "背景", "文章", "材料", "原文", "段落"),
)
SECOND_TEXTS = ("prompt", "question", "problem", "query", "instruction", "text", "input", "description")
MEDIA = {"image", "picture", "figure", "img", "photo", "video", "audio", "diagram", "screenshot", "frame"}
MEDIA_ENDS = {"url", "uri", "link", "path", "file", "byte", "base", "data", "list", "caption", "description"}
PLACE = r"<(?:\|?(?:start_of_)?(?:image|video|audio)(?:[_ ]?(?:\d+|pad|placeholder))?\|?|\|vision_(?:start|end)\|)>"
BRACKETED = r"\[(?:image|IMG)\]"  # a blank to fill in, but where it opens the prompt
PLACED = re.compile(rf"\A\s*(?:{PLACE}|{BRACKETED})|{PLACE}(?=\s*$)", re.MULTILINE)  # not a word of the text
HTML_TAGS = ("<image>", "<video>", "<audio>")
# what may stand before one that is alone on its line, such as `Image A:`; what makes one a word or an option
LABELS = re.compile(
    r"(?i)\s*(?:(?=.*[^\W\d_]{2})(?:[\w#]+ ?){1,3}:|(?:image|picture|photo|figure|video|clip|audio|sound)\b ?\w?)?\s*"
)
NO_PLACE = re.compile(r"(?i)(?:\b(?:with|the|an?)|\A\s*\(?\w[.):]|\A\s*[*-]|\b[A-J]\))\s*\Z")
HTML = re.compile(
    r"(?i)</(video|audio|image)>|\b(html5?|elements?|(?<![>`] )tags?)\b"
    r"|</?(!doctype|html|head|body|div|span|p|a|[uo]l|li|h[1-6]|table|br|img|source|track|svg|script|style)\b"
)
TRUTH = "TRUE|FALSE|WAHR|FALSCH|VRAI|FAUX|VERDADERO|VERDADEIRO|VERO|FALSO|WAAR|ONWAAR|ИСТИНА|ЛОЖЬ"  # spreadsheets'
JSON_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}  # of JSON Schema
NOTE_WORDS = {"supporting", "gold", "answer", "output", "response", "correct", "solution", "is", "has", "num"}
CHOICE_KEYS = (
    *("choices", "options", "answer_choices", "answer_options", "endings", "choice", "candidates", "alternatives"),
    *("mc1_targets", "answers", "distractors", "incorrect_answers"),
)
NUMBER_KEYS = ("label", "gold_label", "correct", "correct_option", "answer_idx", "answer_index", "cop")
# one choice a column: A, optionB, option_1, opa, sol2, ending0, mc_answer4, "Incorrect Answer 3"
ONE_CHOICE = re.compile(
    r"((?i:op(?=[A-Da-d])|opt(?:ion)?|choice|(?:mc_?)?answer|ans|sol|ending|candidate|alternative|distractor"
    r"|(?:incorrect|wrong)_?answer)_?)([A-Ja-j]|\d\d?)|([A-Ja-j])"
)
WRONG = re.compile(r"(?i)distractor|incorrect|wrong")  # columns of choices without the right one
MISSING = (
    r"\s*(#(N/A|REF!|DIV/0!|NAME\?|VALUE!|NUM!|NULL!)|#{3,}|N/?A|n/a|[Nn]a[Nn]|null|NULL|None|-+|\?+"
    r"|proof|not ?found|No answer provided)\s*"
)
LOST_BACKSLASH = re.compile(r"[\x08\f][a-z]|\t(?:ext|imes|heta|frac)\b|\r(?:ight|angle|ho)\b")
# a fraction or a ratio as a date, in eight languages; a long number as its first digits
SPREADSHEET = (
    r"(?i:\d\d?([-/]|\. ?)(janv?|ene|gen|fe[bv]|févr|mars?|m[rä][rzt]|a[bpv]r|ma[giy]|mei|jui?[ln]|giu|lug|aug|ago|août"
    r"|sept?|set|o[ckt]t|out|nov|d[eé][cz]|dic)\.?)|\d{4}-\d\d-\d\d[ T]00:00:00|-?\d([.,]\d+)?E\+\d\d"
)
GROUPED_MONEY = r"(?i)[-+]?([€$£¥₹] ?[1-9]\d?\d?\.\d{3}|[1-9]\d?\d?\.\d{3} ?([€£¥₹]|eur(os?)?|usd|dollars?))"
WHOLE = r"\s*[-+]?\d+\.0\s*"
ODD_ANSWERS = {  # which ones a reward may misread: what to say of them
    r"\s*": "are empty, which every text contains: a reward may pay all of them; fill them in, or drop the rows",
    MISSING: "look like {}, a missing value or a spreadsheet's error; fill them in, or drop the rows",
    WHOLE: "look like {}: a reward that compares texts pays no integer; in pandas: .astype('Int64')",
    r"(?!\s*\Z)([^\S\n].*|.*[^\S\n])": "have blanks around them, like {}, which a reward may compare; strip them",
    GROUPED_MONEY: "look like {}: graders take the point for a decimal point; write 1200 if it groups thousands",
    SPREADSHEET: "look like {}, as spreadsheets rewrite fractions and long numbers; export the column as text",
    rf"(?s).*(?:{LOST_BACKSLASH.pattern}).*": "have lost backslashes, like {}: in JSON, \\frac is written \\\\frac",
    r"""(?s)b(["']).*\1""": "are bytes as Python prints them, like {}, which pay no answer; decode them",
    r"[^\d]*(?![0-9０-９])\d.*": "have digits that some graders take for text, like {}; write 0 to 9",
    TRUTH: "are truth values, {}, which pay no Yes and No; write the words that prompts ask for",
    r"""(?s)\s*\[\s*(["']).*\1\s*\]\s*""": "are lists as text, like {}; write a list if one of them is enough",
}


def plain_name(name: str) -> str:
    """A column's name in lower case, with _ between its words: `Correct Answer` is `correct_answer`."""
    return re.sub(r"[\s-]+", "_", name.strip()).lower()


@functools.lru_cache(4096)
def names_part(name: str) -> bool:
    """Whether a column's name says that it holds a part of the question."""
    if plain_name(name) in (*READ_FIRST, *DOUBTFUL, *SECOND_TEXTS, "system", "system_prompt"):
        return True
    words = words_in(name)
    if not words or NOTE_WORDS & {*words}:
        return False
    return is_media(name) or (len(words) > 1 and head_of(name) in {*READ_FIRST, *DOUBTFUL})


def head_of(name: str) -> str:
    """What a column's name says that it holds: passage for `flores_passage` and `passage_text`."""
    stems = [word.removesuffix("s") for word in words_in(name)]
    return stems[-2] if len(stems) > 1 and stems[-1] in ("text", "content") else stems[-1]


def words_in(name: str) -> list[str]:
    """The words of a column's name, which may be in camel case."""
    return re.findall(r"[^\W\d_]+", plain_name(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)))


def is_media(name: str) -> bool:
    """Whether a column's name says that it holds images, sound, or where they lie."""
    stems = [word.removesuffix("s") for word in words_in(name)]
    return bool(MEDIA & {*stems}) and stems[-1] in MEDIA | MEDIA_ENDS


@functools.lru_cache(4096)
def choice_names(names: tuple[str, ...]) -> tuple[list[str], list[tuple[str, ...]]]:
    """(columns that may hold all choices, groups of columns that hold one each: A, B or 0, 1 or 1, 2) of a row."""
    families = {}
    for name in names:
        if match := ONE_CHOICE.fullmatch(re.sub(r"[\s-]+", "_", name)):
            prefix, mark = match[1] or str(match[3].isupper()), match[2] or match[3]
            place = int(mark) if mark.isdigit() else ord(mark.lower()) - ord("a")
            families.setdefault(prefix.lower(), {})[place] = name
    complete = []
    for prefix, family in families.items():
        least = 4 if prefix == "false" else 1 if WRONG.match(prefix) else 2  # `a` and `b` alone are rather two numbers
        if min(family) < 2 and len(family) >= least and max(family) - min(family) + 1 == len(family):
            complete.append(tuple(family[place] for place in sorted(family)))
    listed = [name for name in names if re.fullmatch(r"(?i)\w+_(?:option|choice)s?_list", name)]
    return [*(name for name in CHOICE_KEYS if name in names), *listed], complete


def choice_columns(row: dict) -> tuple[str, ...]:
    """The columns with the choices of a question, one or several; () where none looks like it."""
    keys, families = choice_names(tuple(row))
    for name in keys:
        value = row[name]
        if is_empty(value) or not isinstance(value, str | list | dict):
            continue
        if isinstance(value, str) and (name == "choice" or value.strip() in ("[]", "{}")):
            continue
        if name == "answers":  # ReClor's; elsewhere accepted answers
            several = isinstance(value, list) and len(value) > 1 and row.get("answer") is None
            if not several or not any(row.get(number) is not None for number in NUMBER_KEYS):
                continue
        return (name,)
    for family in families:
        given = tuple(name for name in family if not is_empty(row[name]))
        if len(given) > 1 or (given and WRONG.match(given[0])):
            return given if given == family[: len(given)] else family
    return ()


def is_empty(value) -> bool:
    """Whether a cell holds nothing: null, blanks, an empty list or object."""
    return value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())


def texts_in(value) -> list[str]:
    """Every text and number in a value, however deep; of a chat message its content."""
    if isinstance(value, dict | list):
        inner = value if isinstance(value, list) else [item for key, item in value.items() if key != "role"]
        return [text for item in inner for text in texts_in(item)]
    return [] if value is None or isinstance(value, bool) else [value if isinstance(value, str) else repr(value)[:100]]


def placeholder_in(text: str) -> str | None:
    """The place of an image, video or sound in a prompt, where a chat template would put it.

    HTML has the tags `<image>`, `<video>` and `<audio>` too, but does not open a prompt with one.
    """
    is_html = HTML.search(text) is not None
    for place in PLACED.finditer(text):
        before = re.sub("|".join(HTML_TAGS), "", text[: place.start()].rpartition("\n")[2])
        ends = not text[place.end() :].strip()
        is_place = LABELS.fullmatch(before) or (ends and not NO_PLACE.search(before))
        if not place.start() or place[0] not in HTML_TAGS or (is_place and not is_html):
            return place[0].strip()
    return None


def squeezed(text: str) -> str:
    """A text with one blank between its words."""
    return " ".join(text.split())


def is_json_schema(name: str, value) -> bool:
    """Whether a column named as a schema holds a JSON Schema, by which a reward checks, and no tables of a database."""
    if head_of(name) != "schema":
        return False
    with contextlib.suppress(ValueError):
        value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        return False
    properties, kind = value.get("properties"), value.get("type")
    if isinstance(properties, dict) and all(isinstance(one, dict | bool) for one in properties.values()):
        return True
    marks = value.keys() & {"$schema", "$ref", "anyOf", "oneOf", "allOf"}
    return bool(marks) or (isinstance(kind, str) and kind in JSON_TYPES)


def unread_parts(row: dict, prompt) -> list[str]:
    """Columns that look like a part of the question but are not in the prompt, a text or messages."""
    choices = choice_columns(row)
    names = [name for name in dict.fromkeys([*filter(names_part, row), *choices]) if not is_empty(row[name])]
    names = [name for name in names if row[name] != prompt and not is_json_schema(name, row[name])]
    if not names:
        return []
    whole = prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
    asked, parts, unread = squeezed(whole), [squeezed(part) for part in whole.split("\n\n")], []
    has_letters = all(re.search(rf"\b{letter}\s?[).:、．]", asked, re.IGNORECASE) for letter in "AB")  # of choices
    for name in names:
        inside = [squeezed(text) for text in texts_in(row[name])]
        is_note = isinstance(row[name], int | float) and name not in choices
        is_whole = name in SECOND_TEXTS and len(inside) == 1 and all(part in inside[0] for part in parts)  # Alpaca's
        is_there = all(text in asked for text in inside) and (name not in choices or has_letters)
        if not is_note and not is_whole and not is_there:
            unread.append(name)
    return unread


def odd_answers(name: str, values: list, prompts: Sequence = ()) -> list[str]:
    """A line for each kind of answer in a column that a reward may misread; prompts may ask for true or false.

    >>> odd_answers("gold", ["3,5", "4,25", "12"])
    ["2 of 3 values of gold look like '3,5': graders take commas for separators; write a decimal point, and no groups"]
    """
    texts = [str(v).upper() if v is True or v is False else str(v) for v in values if isinstance(v, str | float | bool)]
    odd = {line: [text for text in texts if re.fullmatch(pattern, text)] for pattern, line in ODD_ANSWERS.items()}
    formulas = [text for text in texts if not re.fullmatch(r"\s*([-+]?\d+|NaN)?\s*", text)]
    if any(re.fullmatch(r"\s*[-+]?\d*\.\d*[1-9]\d*\s*", text) for text in texts):  # not a column of integers
        odd[ODD_ANSWERS[WHOLE]] = []
    if odd[ODD_ANSWERS[TRUTH]]:
        asking = sum(re.search(rf"(?i)\b({TRUTH})\b", str(prompt)) is not None for prompt in prompts)
        if 2 * asking > len(prompts):
            odd[ODD_ANSWERS[TRUTH]] = []
    commas = [t for t in formulas if with_point(t) != t and re.fullmatch(r"[-+\d.]*,[\d.,]+(\s?[^\d\s,;]{1,9})?", t)]
    if 2 * len(commas) >= len(formulas) and 20 * len(commas) >= len(texts):
        odd["look like {}: graders take commas for separators; write a decimal point, and no groups"] = commas
    wordy = (text for text in texts if len(text.split()) > 20 and "boxed" not in text)
    unmarked = [text for text in wordy if marked_gold(text) == text.strip()]
    odd["have over 20 words and no marked answer, like {}: no short answer equals them"] = unmarked
    if name != "ground_truth":  # an environment's own
        objects = [value for value in values if isinstance(value, dict) and "text" not in value]
        odd["are objects, like {}, which equal no answer; try data_loader.py, which reads some"] = objects
    lists = (accepted(value) for value in values if isinstance(value, list))
    numbers = ([str(i) for i in items if re.fullmatch(r"[-+]?\d[\d.,]*|[A-J]", str(i))] for items in lists)
    plain = ([item.replace(",", "") for item in items] for items in numbers)
    kept = re.compile(r"[A-J]|.*\..*\..*")  # letters, dates
    several = [items[:3] for items in plain if len({i if kept.match(i) else round(float(i), 2) for i in items}) > 1]
    odd["list several numbers or letters, like {}, any of which pays; write one text if all are needed"] = several
    found = ((line.format(reprlib.repr(items[0])), len(items)) for line, items in odd.items() if items)
    return [f"{count} of {len(values)} values of {name} {line}" for line, count in found]


def warn_odd_answers(source: str, rows: list[dict], prompts: Sequence) -> None:
    """Warn of what `odd_answers` finds in the columns that rewards compare with."""
    for name in ("answer", "final_answer", "expected_answer", "ground_truth"):
        for line in odd_answers(name, [row[name] for row in rows if name in row], prompts):
            say(f"warning: {source}: {line}")


def warn_unread(source: str, asked: list[tuple[dict, object]]) -> Counter:
    """Warn of columns that look like a part of the question but are in no prompt, and of prompts with their answer."""
    counts, total = Counter(), len(asked)
    prompts = [prompt for _, prompt in asked]
    warn_odd_answers(source, [row for row, _ in asked], prompts)
    for row, prompt in asked:
        prepared = isinstance(row.get("prompt"), list) and {"source", "id"} <= row.keys()  # by data_loader.py
        counts.update([] if prepared else unread_parts(row, prompt))
    last = [prompt[-1] for prompt in prompts if not isinstance(prompt, str)]
    texts = [prompt if isinstance(prompt, str) else str(prompt[-1]["content"]) for prompt in prompts]
    likely = [text for text in texts if any(word in text for word in ("image", "IMG", "video", "audio", "vision"))]
    found = (
        (map(placeholder_in, likely), "have an image placeholder, but no image; try data_loader.py with --on_bad skip"),
        (map(LOST_BACKSLASH.search, texts), "have lost backslashes: in JSON, \\frac is written \\\\frac"),
        ((holds_answer(f"{m['content']} …") for m in last), "open an assistant's turn themselves; try the question"),
        ((m["role"] == "assistant" for m in last), "end with an assistant turn; an answer belongs in its own column"),
        ((holds_answer(p) or is_dialogue(p) for p in prompts), "are dialogues with answers; try a list `messages`"),
    )
    for flags, what in found:
        if count := sum(map(bool, flags)):
            say(f"warning: {source}: {count} of {total} prompts {what}")
    if counts:
        names = ", ".join(f"{name} (in {count} of {total} rows)" for name, count in counts.items())
        got = f"got columns that look like a part of the question but are in no prompt: {names}"
        drop = f"with `--drop {shlex.join(counts)}` for columns that do not belong to it"
        say(f"warning: {source}: {got}; try `python scripts/data_loader.py {source} --out FILE.jsonl`, {drop}")
    return counts


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
    """Put the chat template of a file into a tokenizer; nothing for an empty name."""
    if file:
        tokenizer.chat_template = template_text(file)


def as_object(arguments):
    """Arguments of a tool call as an object, where they are one or its JSON text; others as they are."""
    try:
        value = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def as_json(arguments):
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def recast(form: Callable, call):
    """A tool call, or several, with arguments in the form of `as_object` or `as_json`."""
    if isinstance(call, dict):
        return {key: form(value) if key == "arguments" else recast(form, value) for key, value in call.items()}
    return [recast(form, one) for one in call] if isinstance(call, list) else call


def with_arguments(form: Callable, messages: list[dict]) -> list[dict]:
    """Messages with tool arguments in a form, and no empty list of calls, which Llama's template reads as a call."""
    kept = [m if m.get("tool_calls", True) else {key: m[key] for key in m if key != "tool_calls"} for m in messages]
    return [m | {"tool_calls": recast(form, m["tool_calls"])} if "tool_calls" in m else m for m in kept]


def write_chat(tokenizer, messages: list[dict], **given) -> str:
    """The text of `apply_chat_template`; tool arguments take the template's form, ValueError if they are no object.

    Most templates encode objects as JSON and would encode OpenAI's JSON text twice. DeepSeek's take only text, and a
    template that prints its input would write an object as Python does.
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
    """The text of a prompt up to where the model writes: a new turn, or a last assistant turn that it continues.

    ValueError where the template changes the text of that turn, or the turn calls a tool.
    """
    text = messages[-1]["content"]
    if messages[-1]["role"] != "assistant":
        return write_chat(tokenizer, messages, add_generation_prompt=True, **template)
    if messages[-1].get("tool_calls"):
        raise ValueError("it ends in a tool call without its result")
    if not text.strip():  # an empty place for the answer
        return write_chat(tokenizer, messages[:-1], add_generation_prompt=True, **template) + text
    try:
        whole = write_chat(tokenizer, messages, continue_final_message=True, **template)
    except ValueError:  # the text is not in it
        whole = ""
    kept = next((part for part in (text, text.rstrip(), text.strip()) if whole.endswith(part)), None)
    if kept is None:
        raise ValueError(f"it does not keep the assistant's turn that ends the prompt, {text[-80:]!r}")
    begun = whole.removesuffix(kept)
    if text.lstrip().startswith("<think>"):  # Qwen3's puts an empty thought before text that it finds none in
        begun = re.sub(r"<think>\s*</think>\s*$", "", begun)
    return begun + text


class TemplateForm:
    """What a chat template writes around a user's words, by which strings that are in its form already are known.

    A control token inside of a text is no sign of it: people ask about `<|im_end|>`.
    """

    def __init__(self, tokenizer):
        try:
            text = write_chat(tokenizer, [{"role": "user", "content": "Question"}], add_generation_prompt=True)
        except Exception:  # a template raises what it likes
            text = ""
        before, _, after = text.rpartition("Question")
        added = {token.content for token in tokenizer.added_tokens_decoder.values()} - {"<think>", "</think>"}
        self.tokens = tuple(token for token in added if token in text and token.strip())
        self.opening = tuple(token for token in self.tokens if token in before)
        # words as short as "Answer" stand in plain prompts, too
        self.closing = after.strip() if len(after.strip()) > len("Answer") else ""

    def holds(self, prompt) -> bool:
        """Whether a prompt is a string that begins or ends as the template's text does."""
        if not isinstance(prompt, str):
            return False
        text = prompt.strip()
        if text.startswith(self.opening):
            return True
        return self.closing != "" and (text.endswith(self.closing) if self.opening else self.closing in text)


def joined_text(messages: list[dict]) -> str:
    """Chat messages as text for a tokenizer without chat template: contents joined by newlines."""
    end = "" if messages[-1]["role"] == "assistant" else "\n"
    return "\n".join(message["content"] for message in messages) + end


# ------------------------------------------------------------------------------- held out (src/parts/data/held_out.py)


def asked_words(prompt) -> str:
    """What a prompt asks: alike for prompts that differ in case, white space, Unicode form or system prompt only."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    asked = [message for message in messages if message["role"] not in ("system", "developer")] or messages
    texts = [unicodedata.normalize("NFKC", str(message["content"])).casefold() for message in asked]
    return "\n".join("".join(text.split()) for text in texts)


def task_of(row: dict, with_columns: bool) -> tuple[str, str]:
    """What tells a row's task from others; an environment makes different tasks of one prompt by its columns."""
    columns = json.dumps(row["columns"], sort_keys=True, default=str) if with_columns else ""
    return asked_words(row["prompt"]), columns


def drawn_tasks(tasks: list[tuple], count: int) -> set[tuple]:
    """Tasks (`task_of` each row) with at most `count` rows, drawn by a hash: the same in any order, for any seed."""
    sizes, drawn, rows = {}, set(), 0
    for task in tasks:
        sizes[task] = sizes.get(task, 0) + 1
    for task in sorted(sizes, key=lambda task: hashlib.sha256(repr(task).encode()).digest()):
        if rows + sizes[task] <= count:
            drawn.add(task)
            rows += sizes[task]
    return drawn


# --------------------------------------------------------------------------------- prompts (src/parts/data/prompts.py)

RESERVED = ("prompt", "prompts", "completions", "completion_ids")  # a reward gets the run's, not a column of the data


def encode_text(tokenizer, text: str) -> list[int]:
    """Token ids of a text to be continued: the tokenizer adds no end token, and no BOS or the like a second time."""
    ids = list(tokenizer(text).input_ids)
    if ids and (ids[0] in ids[1:4] or ids[-1] == tokenizer.eos_token_id):  # perhaps twice, perhaps added
        bare = list(tokenizer(text, add_special_tokens=False).input_ids)
        if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id != (bare or [None])[-1]:
            ids.pop()
        for n in (1, 2, 3):
            if ids[n : n + len(bare)] == bare and bare[:n] == ids[:n]:
                return ids[n:]
    return ids


# --------------------------------------------------------------------------- pass rates (src/parts/data/pass_rates.py)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that one of k samples passes, from c of n that did: 1 - C(n - c, k) / C(n, k) (Chen 2021, eq. 1).

    >>> pass_at_k(5, 2, 3), pass_at_k(4, 0, 2), pass_at_k(3, 1, 3)
    (0.9, 0.0, 1.0)
    """
    need(0 <= c <= n, f"got {c} passes of {n} samples; expected 0 to {n}")
    need(1 <= k <= n, f"got pass@{k} of {n} samples; expected k of 1 to n; try --n {max(k, 1)}")
    return float((math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k))


# -------------------------------------------------------------------- text servers (src/parts/rewards/text_servers.py)


def server_json(url: str, body: dict | None, hint: str, tries=5, timeout: float = 600, wait: float = 0.5) -> dict:
    """The JSON answer to a GET or a POST of `body`, with tries after a lost connection; an error ends with `hint`."""
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
            what = f"{error} {error.read()[:200]!r}"
            if error.code not in (408, 425, 429) and error.code < 500:
                break
        except (OSError, ValueError, http.client.HTTPException) as error:
            what = str(error)
    raise UserError(f"got {what} from {url}; expected an answer; {hint}")


def server_text(base_url: str, prompt: str | list[dict], body: dict, hint: str) -> tuple[str, str | None, int | None]:
    """One completion: messages go to /chat/completions, text to /completions.

    Args:
        body: model, max_tokens, temperature and further fields of the request.

    Returns:
        (text, the server's finish_reason, its count of tokens or None).
    """
    chat = isinstance(prompt, list)
    if chat and prompt[-1]["role"] == "assistant":  # as vLLM and SGLang go on with it
        body = body | {"add_generation_prompt": False, "continue_final_message": True}
    url = base_url.rstrip("/") + ("/chat/completions" if chat else "/completions")
    answer = server_json(url, body | {"messages" if chat else "prompt": prompt}, hint)
    try:
        choice = answer["choices"][0]
        text = (choice["message"]["content"] if chat else choice["text"]) or ""
    except (KeyError, IndexError, TypeError):
        raise UserError(f"got {str(answer)[:200]} from {url}; expected choices with text; {hint}") from None
    return text, choice.get("finish_reason"), (answer.get("usage") or {}).get("completion_tokens")


# -------------------------------------------------------------------------- user code (src/parts/rewards/user_code.py)


def visible_text(tokenizer, ids: list[int], eos_ids) -> str:
    """The text of sampled ids without the end tokens and pads at their end.

    Special tokens before that stay visible: a policy that writes `<|user|>` into its answer has to be seen doing so.
    """
    ends, length = {*eos_ids, tokenizer.eos_token_id, tokenizer.pad_token_id}, len(ids)
    while length and ids[length - 1] in ends:
        length -= 1
    return tokenizer.decode(ids[:length], skip_special_tokens=False)


def text_of_turns(completion) -> str:
    """The text of a completion or prompt, a string or messages."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def user_text(prompt) -> str:
    """What the model was asked: a string prompt, or the last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def text_of_answers(completion) -> str:
    """The text of a completion; of a conversation what the model said, without tools' results and replies."""
    if isinstance(completion, str):
        return completion
    return text_of_turns([message for message in completion if message.get("role", "assistant") == "assistant"])


def own_copy(value):
    """A copy of a column's value or of a prompt, as far as a reward could change it; other values as they are."""
    if isinstance(value, list):
        return [item if isinstance(item, str | int | float) else own_copy(item) for item in value]
    if isinstance(value, dict):
        return {key: own_copy(item) for key, item in value.items()}
    return value.copy() if isinstance(value, set) or hasattr(value, "tolist") else value


def reward_arguments(rows: list[dict], completions: list, completion_ids: list[list[int]]) -> dict:
    """Keyword arguments of a reward function in TRL's shapes; a column absent from a row is None there.

    Completions are texts, or the messages of conversations, which stay as they are. Each completion has its own copies,
    so that a reward which changes them changes nothing for others.
    """
    columns = {name: None for row in rows for name in row["columns"]}
    return {
        "prompts": [own_copy(row["prompt"]) for row in rows],
        "completions": [
            [{"role": "assistant", "content": said}]
            if isinstance(said, str) and not isinstance(prompt, str)
            else own_copy(said)
            for prompt, said in zip([row["prompt"] for row in rows], completions, strict=True)
        ],
        "completion_ids": [[*ids] for ids in completion_ids],
        **{name: [own_copy(row["columns"].get(name)) for row in rows] for name in columns},
    }


PATCHABLE = (builtins, io, json, math, os, os.path, random, shutil, time)


def put_folder(folder: str) -> None:
    """Go to a folder, where it is still there."""
    with contextlib.suppress(OSError):
        os.chdir(folder)


def put_environment(variables: dict) -> None:
    """Give the environment these variables and no others."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})


def stream_of(name: str) -> tuple:
    """sys.stdout or sys.stderr, and whether it is closed."""
    stream = getattr(sys, name)
    return stream, getattr(stream, "closed", False)


def put_stream(name: str, stream, closed: bool) -> None:
    """Have sys.stdout or sys.stderr back, also where it was closed meanwhile."""
    if getattr(stream, "closed", False) and not closed:
        stream = open({"stdout": 1, "stderr": 2}[name], "w", buffering=1, encoding="utf-8", closefd=False)
    setattr(sys, name, stream)


def put_filters(filters: list) -> None:
    """Have the warnings filtered so."""
    warnings.filters[:] = filters
    getattr(warnings, "_filters_mutated", bool)()


def umask() -> int:
    """The mode bits that new files do not get."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def handlers() -> dict:
    """The handlers of the signals by which a run is stopped."""
    return {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}


def put_handlers(found: dict) -> None:
    """Have these handlers again; only the main thread can change them."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in found.items():
            signal.signal(number, handler)


def put_attributes(modules: dict) -> None:
    """Undo what was patched in these modules; names that are new there stay."""
    for module, names in modules.items():
        now = vars(module)
        for name, value in names.items():
            if now.get(name, names) is not value:
                setattr(module, name, value)


def states_of_process() -> dict:
    """{name: (how to take it, how to put it back, and of some libraries what it is at first)} of what there is once."""
    found = {
        "folder": (lambda: os.getcwd() if os.path.exists(".") else "", put_folder),
        "environment": (os.environ.copy, put_environment),
        "path": (sys.path.copy, lambda path: sys.path.__setitem__(slice(None), path)),
        "arguments": (sys.argv.copy, lambda given: setattr(sys, "argv", given)),
        "stdout": (lambda: stream_of("stdout"), lambda found: put_stream("stdout", *found)),
        "stderr": (lambda: stream_of("stderr"), lambda found: put_stream("stderr", *found)),
        "warnings": (warnings.filters.copy, put_filters),
        "logging": (lambda: logging.root.manager.disable, logging.disable),
        "timeout": (socket.getdefaulttimeout, socket.setdefaulttimeout),
        "locale": (lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
        "umask": (umask, os.umask),
        "collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        "handlers": (handlers, put_handlers),
        "attributes": (lambda: {module: dict(vars(module)) for module in PATCHABLE}, put_attributes),
    }
    if numpy := sys.modules.get("numpy"):
        found["numpy's errors"] = numpy.geterr, lambda how: numpy.seterr(**how)
    torch = sys.modules.get("torch")
    if hasattr(torch, "set_default_dtype"):  # not half imported
        modes = torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled
        put = lambda mode: torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])  # noqa: E731
        found["determinism"] = lambda: [mode() for mode in modes], put, [False, False]
        found["dtype"] = torch.get_default_dtype, torch.set_default_dtype, torch.float32
        found["anomalies"] = torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, False
        found["threads"] = torch.get_num_threads, torch.set_num_threads
    return found


def states_of_thread() -> dict:
    """The same of what a thread has."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "set_default_dtype"):
        return {}
    put_device = lambda device: torch.set_default_device(None if device.type == "cpu" else device)  # noqa: E731
    return {
        "gradients": (torch.is_grad_enabled, torch.set_grad_enabled, True),
        "device": (torch.get_default_device, put_device, torch.device("cpu")),
    }


class OwnState:
    """The state of the process as rewards have left it; `swapped` gives it to them and takes it away again."""

    def __init__(self):
        self.changed, self.ours, self.inside, self.lock = {}, {}, 0, threading.RLock()

    def enter(self, states: dict) -> dict:
        """Put what rewards have changed; returns the trainer's state."""
        ours = {name: take() for name, (take, *_) in states.items()}
        for name, (_, put, *_) in states.items():
            if name in self.changed and name != "handlers":  # signals go to the trainer always
                put(self.changed[name])
        return ours

    def leave(self, states: dict, ours: dict) -> None:
        """Note what rewards have changed, and put the trainer's state back."""
        for name, (take, put, *fresh) in states.items():
            now = take()
            before = ours.get(name, fresh[0] if fresh else now)  # libraries may have been imported meanwhile
            if now == before:
                self.changed.pop(name, None)
                continue
            self.changed[name] = now
            put(before)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Run rewards in their own state; several threads may at a time."""
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.ours = self.enter(states_of_process())
            mine = self.enter(states_of_thread())
        try:
            yield
        finally:
            with self.lock:
                self.leave(states_of_thread(), mine)
                self.inside -= 1
                if not self.inside:
                    self.leave(states_of_process(), self.ours)


REWARD_STATE = OwnState()


# -------------------------------------------------------------------- reward forms (src/parts/rewards/reward_forms.py)

REWARD_FORMS = (
    "def reward(prompt, completion, answer) -> float, or def reward(prompts, completions, answer, **kwargs) -> list"
)


def is_per_sample(function) -> bool:
    """Whether a reward takes one sample, told by the names of its parameters: `prompt` or `completion`, not plural.

    Raises:
        UserError: it has names of both forms.
    """
    names = inspect.signature(function).parameters
    one = [name for name in ("prompt", "completion") if name in names]
    many = [name for name in ("prompts", "completions") if name in names]
    name = getattr(function, "__name__", type(function).__name__)
    got = f"got reward {name} with {' and '.join([*one, *many])}, so for one sample or for a batch"
    need(not (one and many), f"{got}; expected one of two forms: {REWARD_FORMS}")
    return bool(one)


class PerSample:
    """A reward `(prompt, completion, **columns) -> float or None`, async or not, in the shape of a batch.

    `prompt` is the data's, a string or chat messages; `completion` is text in both cases; every other argument is the
    sample's entry. Signature and name are those of a function with TRL's contract.
    """

    def __init__(self, function):
        self.function, self.__name__ = function, getattr(function, "__name__", type(function).__name__)
        self.__doc__, parameter = inspect.getdoc(function), inspect.Parameter
        own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_POSITIONAL]
        named = {p.name: p for p in own if p.kind is not p.VAR_KEYWORD}
        columns = [p.replace(kind=p.KEYWORD_ONLY) for name, p in named.items() if name not in ("prompt", "completion")]
        both = [parameter(name, parameter.KEYWORD_ONLY) for name in ("prompts", "completions")]
        rest = [p for p in own if p.kind is p.VAR_KEYWORD]
        self.names = None if rest else {*named}
        self.__signature__ = inspect.Signature([*both, *columns, *rest])

    def calls(self, prompts: list, completions: list, **columns) -> list:
        """One call for each completion, still to be made."""
        whole = {name: columns.pop(name) for name in ("trainer_state", "log_extra", "log_metric") if name in columns}
        found = []
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            given = {name: values[i] for name, values in columns.items()} | whole
            given |= {"prompt": prompt, "completion": text_of_answers(completion)}
            taken = {name: value for name, value in given.items() if self.names is None or name in self.names}
            found.append(functools.partial(self.function, **taken))
        return found

    def __call__(self, **arguments) -> list:
        """Scores of a batch; what an async function returns is still to be awaited."""
        return [call() for call in self.calls(**arguments)]


def as_reward(function):
    """A reward with the signature of a batch, from one of either form."""
    return PerSample(function) if is_per_sample(function) else function


def is_installed(name: str, folder: Path) -> bool:
    """Whether a module of this name is Python's own, or found in another folder than this one."""
    places = [place for place in sys.path if Path(place or ".").resolve() != folder]
    known = name in sys.builtin_module_names or name in sys.stdlib_module_names
    return known or importlib.machinery.PathFinder.find_spec(name, places) is not None


def make_way(folder: Path) -> None:
    """Forget loaded modules for which there is a file of that name in a folder: other folders' own, or a script's."""
    for file in folder.glob("*.py"):
        there = getattr(sys.modules.get(file.stem), "__file__", None)
        library = file.stem in sys.stdlib_module_names or re.search("(site|dist)-packages", str(there))
        if there and not library and file.stem != "__main__" and Path(there).resolve() != file:
            del sys.modules[file.stem]


def forget_shadows(folder: Path, names: set[str]) -> None:
    """Leave modules of a folder to those that have them, where libraries have their names, which others will import."""
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).resolve().parent == folder and is_installed(name, folder):
            del sys.modules[name]


def importable_name(file: Path) -> str:
    """The stem of a file, under which other processes import it; a name of its own where another module has that."""
    there = getattr(sys.modules.get(file.stem), "__file__", None)
    own = there and Path(there).resolve() == file
    free = file.stem not in sys.modules and not is_installed(file.stem, file.parent) and "." not in file.stem
    return file.stem if own or free else f"{file.stem}_{abs(hash(str(file)))}"


def import_file(what: str, spec: str, file: str):
    """Import a user's file once, by its path; `what` and `spec` name it in the message of a UserError.

    Other processes can import it by its name, as `multiprocessing` does. What a reward changes of the process, the
    working folder, say, is its own.
    """
    path = Path(file).resolve()
    with REWARD_STATE.swapped() if what == "reward" else contextlib.nullcontext():
        name, known = importable_name(path), {*sys.modules}
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
            problem = f"importing {file} raises {type(error).__name__}: {error}"
            raise UserError(f"got {what} {spec!r}: {problem}; expected a file that imports") from error
        finally:
            forget_shadows(path.parent, {*sys.modules} - known - {name})
            if what != "reward":
                sys.argv, sys.path[:] = before
    sys.path.append(str(path.parent))
    return module


def is_weight(value) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def weights_in(members: dict) -> dict[str, list]:
    """The lists of numbers among a module's members."""
    lists = {name: [*value] for name, value in members.items() if isinstance(value, list | tuple) and value}
    return {name: value for name, value in lists.items() if all(map(is_weight, value))}


def list_weights(spec: str, members: dict, found: list, named: str) -> list[float]:
    """Weights of a list of functions: those it has as its attribute, or the list of the file that the spec names.

    Raises:
        UserError: it has none, as a list of TRL's `reward_funcs`, or not one for each.
    """
    lists, target, many = weights_in(members), spec.partition("*")[0], f"{len(found)} functions"
    own = getattr(found, "weights", None)
    if own is None and not named and len(found) > 1:
        fits = [name for name, values in lists.items() if len(values) == len(found)]
        advice = (
            f"{target}*{fits[0]}" if fits else f"{target}*WEIGHTS, after WEIGHTS = {[1.0] * len(found)} in the file"
        )
        raise UserError(f"got reward {spec!r}: {many} without weights; expected one for each; try {advice}")
    if not named:
        weights = [1.0] if own is None else own
    else:
        need(own is None, f"got reward {spec!r}: a list with weights of its own, {own}; expected no others")
        near = f"one of {', '.join(lists)}" if lists else "such a list in the file"
        need(
            named in lists, f"got reward {spec!r}: no list of numbers {named!r}; expected {near}{suggest(named, lists)}"
        )
        weights = lists[named]
    need(len(weights) == len(found), f"got reward {spec!r}: {many} with {len(weights)} weights; expected one for each")
    return weights


def is_reward(member, names: tuple[str, ...] = ("completions",)) -> bool:
    """Whether a library's member is a reward function, or an object that is called like one: it takes one of names."""
    try:
        return not inspect.isclass(member) and bool({*names} & {*inspect.signature(member).parameters})
    except (TypeError, ValueError):
        return False


def is_preset(member) -> bool:
    """Whether a library's member is a list of functions with weights."""
    return isinstance(member, list) and hasattr(member, "weights")


def library_rewards(file: str) -> dict:
    """{name: function or preset} of a reward library."""
    need(Path(file).is_file(), f"got library {file!r}, not a file; expected a Python file; try FILE.py:function")
    with contextlib.redirect_stdout(sys.stderr):
        members = vars(import_file("library", file, file))
    return {n: m for n, m in members.items() if not n.startswith("_") and (is_reward(m) or is_preset(m))}


def full_spec(spec: str, library: str = EMBEDDED_REWARDS) -> str:
    """`FILE.py:name[*weight]` of a spec; a bare name is one of the library's, whatever files are called."""
    name = spec.partition("*")[0]
    if ":" in name:
        return spec
    expected = "expected FILE.py:function[*weight], or a name of `reward_preflight.py --list`"
    need(name.isidentifier(), f"got reward {spec!r}; {expected}")
    if name not in (names := library_rewards(library)):
        members = vars(import_file("library", library, library))
        raise UserError(f"got reward {spec!r}; {expected}{suggest_reward(name, [*names], members)}")
    return f"{library}:{spec}"


def suggest_reward(name: str, known: list[str], members: dict) -> str:
    """`; try …` with what a library names in place of a reward that it had, or with the nearest of its names."""
    other = members.get("REMOVED_REWARDS", {}).get(name.removesuffix("_reward"))
    return f"; try {other}" if other else suggest(name, known)


def find_reward(spec: str):
    """The function or list of functions that `FILE.py:name[*weight]` or a bare name names, and its file's members."""
    target = full_spec(spec).partition("*")[0]
    file, _, name = target.rpartition(":")
    need(file and Path(file).is_file(), f"got reward {spec!r}: no file {file!r}; expected FILE.py:function[*weight]")
    module = import_file("reward", spec, file)
    members = vars(module)
    found = getattr(module, name, None)
    if isinstance(found, list) and found and all(map(callable, found)):
        return found, members
    own = {
        n: m for n, m in members.items() if getattr(m, "__module__", "") == module.__name__ and not n.startswith("_")
    }
    known = [n for n, member in own.items() if callable(member) and n == getattr(member, "__name__", n)]
    rewards = [n for n in known if is_reward(own[n], ("completion", "completions"))]
    known = rewards or known  # a library has other functions too
    what = f"{file} has no function {name!r}; expected one of {', '.join(known)}{suggest_reward(name, known, members)}"
    need(callable(found), f"got reward {spec!r}: {what}")
    return found, members


def weight_of(spec: str) -> float:
    """The number after the star of a reward's spec, or 1."""
    text = spec.partition("*")[2]
    try:
        weight = float(text or 1.0)
    except ValueError:
        expected = "expected FILE.py:function[*weight], or FILE.py:REWARDS*WEIGHTS with two lists of the file"
        raise UserError(f"got reward {spec!r}: {text!r} is not a number; {expected}") from None
    need(math.isfinite(weight), f"got reward {spec!r}: weight {weight}; expected a finite number")
    return weight


def refuse_form_of_verl(spec: str, function) -> None:
    """Raise UserError for a compute_score, which verl calls with one completion, its gold answer and no prompt."""
    target = spec.partition("*")[0]
    try:
        names = {*inspect.signature(function).parameters}
    except ValueError:  # a builtin
        return
    what = f"got reward {spec!r}, which has verl's form; expected {REWARD_FORMS}"
    port = f"python scripts/create_reward_template.py --from {target} --output my_reward.py"
    need(not {"solution_str", "ground_truth"} <= names, f"{what}; try {port}")


def load_rewards(spec: str) -> list[tuple]:
    """Load `FILE.py:name[*weight]` and return (function, weight) pairs.

    The name is a function, or a list of functions: a preset, which has their weights as its attribute `weights`, or one
    whose weights are a list of numbers in the file, `FILE.py:REWARDS*REWARD_WEIGHTS`.
    """
    found, members = find_reward(spec)
    for function in found if isinstance(found, list) else [found]:
        refuse_form_of_verl(spec, function)
    if not isinstance(found, list):
        return [(found, weight_of(spec))]
    text = spec.partition("*")[2]
    named = text if text.isidentifier() else ""
    factor = 1.0 if named else weight_of(spec)
    return [(f, factor * w) for f, w in zip(found, list_weights(spec, members, found, named), strict=True)]


# ------------------------------------------------------------------------------ rewards (src/parts/rewards/rewards.py)


@dataclass
class CallLimits:
    """Limits on calls of async rewards: seconds for one (0: none), how many at once, and further tries."""

    timeout: float = 600.0
    concurrency: int = 32
    retries: int = 2


def call_limits(config) -> CallLimits:
    """The limits that a run's settings name."""
    return CallLimits(config.reward_timeout, config.reward_concurrency, config.reward_retries)


class CallFailed(Exception):
    """A call raised its __cause__; `number` is its place among the calls of a batch."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


# lost connections as httpx, openai and anthropic, aiohttp, requests and urllib call them
LOST = {"TransportError", "APIConnectionError", "ClientConnectionError", "ConnectionError", "Timeout", "URLError"}


def is_passing(error: BaseException) -> bool:
    """Whether another try may help: a lost connection, a time limit, or an HTTP status 408, 425, 429 or 5xx."""
    holders = (error, getattr(error, "response", None))
    for status in (getattr(holder, name, None) for holder in holders for name in ("status_code", "status", "code")):
        if isinstance(status, int):
            return status in (408, 425, 429) or status >= 500
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(names & LOST)


class RewardLoop:
    """One event loop in a thread of its own, so that what an async reward keeps, such as a client, stays usable."""

    def __init__(self):
        self.loop, self.slots = asyncio.new_event_loop(), {}
        self.thread = threading.Thread(target=self.serve, name="rewards", daemon=True)
        self.thread.start()

    def serve(self) -> None:
        """Run the loop for ever; SystemExit, which a task lets through, does not end it."""
        while True:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()

    def gather(self, jobs: list[tuple], limits: CallLimits) -> list:
        """Await jobs (number, call, the awaitable that it returned) together and return their results in order."""
        future = self.start(jobs, limits)
        try:
            return future.result()
        finally:
            future.cancel()  # where a signal ended the wait

    def start(self, jobs: list[tuple], limits: CallLimits):
        """The future of `gather`."""
        return asyncio.run_coroutine_threadsafe(self.gathered(jobs, limits), self.loop)

    async def gathered(self, jobs: list[tuple], limits: CallLimits) -> list:
        """`gather`, within the loop; where one fails, the others are cancelled."""
        tasks = [asyncio.ensure_future(self.answer(*job, limits)) for job in jobs]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            close_unstarted([first for _, _, first in jobs])

    async def answer(self, number: int, call, first, limits: CallLimits):
        """The result of one job; a try that fails in passing is followed by another call."""
        for attempt in range(1 + limits.retries):
            async with self.slots.setdefault(limits.concurrency, asyncio.Semaphore(limits.concurrency)):
                try:
                    with REWARD_STATE.swapped():
                        return await within(call() if attempt else first, limits.timeout)
                except asyncio.CancelledError as error:
                    if asyncio.current_task().cancelling():  # by `gathered`
                        raise
                    raise CallFailed(number) from RuntimeError(f"was cancelled from within: {error}")
                except BaseException as error:  # SystemExit would end the loop
                    if attempt == limits.retries or not is_passing(error):
                        raise CallFailed(number) from error
                await asyncio.sleep(min(30.0, 0.5 * 2**attempt))


async def within(awaitable, seconds: float):
    """The result of an awaitable, or TimeoutError after a time (0: never)."""
    try:
        async with asyncio.timeout(seconds or None) as clock:
            return await awaitable
    except TimeoutError as error:
        if not clock.expired():
            raise
        raise TimeoutError(f"no answer in {seconds:g} s; try a higher --reward_timeout") from error


def close_unstarted(results: list) -> None:
    """Close the coroutines among results that nobody will await."""
    for result in results:
        if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
            result.close()


LOOPS, LOOPS_LOCK = {}, threading.Lock()


def reward_loop() -> RewardLoop:
    """The loop of this process; a forked one has its own."""
    with LOOPS_LOCK:
        if os.getpid() not in LOOPS:
            LOOPS[os.getpid()] = RewardLoop()
        return LOOPS[os.getpid()]


def answers(calls: list, limits: CallLimits) -> list:
    """Make calls and return their results; those that give an awaitable run together in the reward loop.

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


def reward_calls(function, arguments: dict) -> list:
    """The calls that score a batch, still to be made: one for each completion of a PerSample, else one in all."""
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        arguments = {p.name: arguments[p.name] for p in parameters if p.name in arguments}
    if isinstance(function, PerSample):
        return function.calls(**arguments)
    return [functools.partial(function, **arguments)]


def scored_batch(function, arguments: dict, limits: CallLimits):
    """What one reward function returns for a batch, awaited."""
    results = answers(reward_calls(function, arguments), limits)
    return results if isinstance(function, PerSample) else results[0]


def checked_scores(name: str, result, completions: list) -> list[float | None]:
    """Turn a reward function's result into floats and None, or raise RewardError."""
    values = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(values, list | tuple) or len(values) != len(completions):
        got = f"{len(values)} values" if isinstance(values, list | tuple) else f"a {type(values).__name__}"
        one = "; or name its parameters prompt and completion" if isinstance(values, int | float) else ""
        expected = f"expected a list of {len(completions)}, one per completion{one}"
        raise RewardError(f"reward {name}: got {got}; {expected}")
    scores = []
    for i, value in enumerate(values):
        value = value.item() if hasattr(value, "item") else value
        if value is not None and not (isinstance(value, int | float) and abs(value) < sys.float_info.max):
            where = f"reward {name}, row {i}, completion {text_of_turns(completions[i])[:200]!r}"
            raise RewardError(f"{where}: got {value!r}; expected a finite number or None")
        scores.append(None if value is None else float(value))
    return scores


@functools.cache
def say_once(text: str) -> None:
    """`say` a text the first time."""
    say(text)


def check_columns(functions: dict, row: dict, others: tuple[str, ...] = ()) -> None:
    """Raise UserError if a reward function requires an argument that is neither in the data nor among `others`.

    An optional argument with nearly the name of a column that the function does not take is noted.
    """
    given = {*reward_arguments([row], [""], [[]]), *others}
    for name, function in functions.items():
        taken = inspect.signature(function).parameters
        for p in taken.values():
            required = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            near = suggest(p.name, list(row["columns"]))
            need(
                not required or p.name in given,
                f"reward {name} takes {p.name!r}; got data with the columns {', '.join(row['columns']) or 'none'}; "
                f"expected that column too{near}; or convert the file with data_loader.py, or give --reward "
                "FILE.py:function with a function for this data",
            )
            near = difflib.get_close_matches(p.name, [c for c in row["columns"] if c not in taken], n=1, cutoff=0.75)
            if near and p.name not in given and p.default is not p.empty:
                text = f"reward {name}: no column is called {p.name!r}, so it is always {p.default!r}"
                say_once(f"{text}; did you mean the column {near[0]!r}?")


def blamed_row(name: str, function, call: int, error: BaseException, completions, alone, limits) -> RewardError:
    """The error of a reward that raised on a batch, with its row: a PerSample's call, else the first to raise alone.

    Args:
        call: number of the call that raised.
        alone: returns the arguments of a row by itself.
    """

    def raised(error: BaseException) -> str:
        hint = ""
        first = alone(0)["completions"][0]
        if not isinstance(first, str) and len(first) == 1 and isinstance(error, TypeError | AttributeError | KeyError):
            hint = '; prompts are chat messages, so each completion is [{"role": "assistant", "content": text}]'
        return f"raised {type(error).__name__}: {error}{hint}"

    def where(row: int) -> str:
        return f"reward {name}, row {row}, completion {text_of_turns(completions[row])[:200]!r}"

    if isinstance(function, PerSample):
        return RewardError(f"{where(call)}: raised {type(error).__name__}: {error}")
    if is_passing(error):  # of the connection, not of a row
        return RewardError(f"reward {name}: {raised(error)} on a batch of {len(completions)}")
    for row in range(len(completions)):
        try:
            scored_batch(function, alone(row), limits)
        except CallFailed as failed:
            return RewardError(f"{where(row)}: {raised(failed.__cause__)}")
    return RewardError(f"reward {name}: {raised(error)} on a batch, though on no single row of it")


class Reward:
    """The weighted sum of reward functions, `(prompts, completions, **columns) -> list` as in TRL, or of one sample.

    Functions may be async. They get completions as strings, or as [{"role": "assistant", "content": text}] when the
    prompt is chat messages, `completion_ids`, and every column of the data. None means *not applicable*. A function
    with the parameters `prompt` and `completion` is called for each sample; see PerSample.
    """

    def __init__(self, specs: list[str], limits: CallLimits | None = None):
        self.functions, self.weights, self.silent, self.limits = {}, {}, False, limits or CallLimits()
        self.in_turn = False  # whether a function draws random numbers, so that the order of calls counts
        self.slow = False  # whether functions took long beside sampling
        for function, weight in [pair for spec in specs for pair in load_rewards(spec)]:
            name = getattr(function, "__name__", type(function).__name__)
            while name in {*self.functions, "mean", "std", "accuracy", "score", "length_mean"}:  # other metrics' keys
                name += "_2"
            self.functions[name], self.weights[name] = as_reward(function), weight

    def check_columns(self, row: dict) -> None:
        """Raise UserError if a function requires an argument that the data does not have."""
        check_columns(self.functions, row)

    def run(
        self, rows: list[dict], completions: list[str], completion_ids: list[list[int]], known: dict[str, list]
    ) -> dict[str, list]:
        """Raw results by function, those `known` among them; async ones run together."""
        given = rows, completions, completion_ids
        asked = {name: function for name, function in self.functions.items() if name not in known}
        calls = {name: reward_calls(function, reward_arguments(*given)) for name, function in asked.items()}
        owners = [(name, i) for name, own in calls.items() for i in range(len(own))]
        try:
            found = iter(answers([call for own in calls.values() for call in own], self.limits))
        except CallFailed as failed:
            name, i = owners[failed.number]

            def alone(row: int) -> dict:
                return reward_arguments([rows[row]], [completions[row]], [completion_ids[row]])

            error = blamed_row(name, self.functions[name], i, failed.__cause__, completions, alone, self.limits)
            raise error from failed.__cause__
        results = {name: [next(found) for _ in own] for name, own in calls.items()}
        return known | {n: r if isinstance(self.functions[n], PerSample) else r[0] for n, r in results.items()}

    def __call__(self, rows: list[dict], completions: list[str], completion_ids: list[list[int]], known=None):
        """Return (scores [n], {function: list of n floats or None}) for n completions.

        Args:
            known: raw results by function, of those that have been called already.
        """
        if not rows:  # more processes than held-out prompts
            return [], {}
        results = self.run(rows, completions, completion_ids, known or {})
        parts = {name: checked_scores(name, results[name], completions) for name in self.functions}
        scores = [
            sum(self.weights[name] * values[i] for name, values in parts.items() if values[i] is not None)
            for i in range(len(rows))
        ]
        if all(value is None for values in parts.values() for value in values) and not self.silent:
            self.silent = True
            say("warning: no reward function applies to any row of a batch (all None): it trains nothing")
        return scores, parts


# --------------------------------------------------------------- environments (src/parts/environments/environments.py)

HOOKS = ("reset", "get_reward", "reply")  # public methods that are no tools
ENVIRONMENT_COLUMN = "environment"
HIDE = "; try a leading underscore for a method that is not a tool"


class EnvironmentFault(UserError):
    """An environment itself failed: its reset, reply or get_reward, not one of its tools."""

    code = 3


@dataclass
class EnvironmentKind:
    """A class of environments: how to make one, and what it can do."""

    name: str
    make: Callable
    file: str
    tools: list[dict] = field(default_factory=list)  # JSON schemas
    talks: bool = False
    scores: bool = False

    @property
    def tool_names(self) -> list[str]:
        """Names of the methods that are tools."""
        return [tool["function"]["name"] for tool in self.tools]


@dataclass
class Environments:
    """The kinds of environments of a run: one, under None, or several by the column `environment`."""

    kinds: dict[str | None, EnvironmentKind]

    def kind_of(self, columns: dict) -> EnvironmentKind:
        """The kind that a row of data has."""
        if None in self.kinds:
            return self.kinds[None]
        name = columns.get(ENVIRONMENT_COLUMN)
        known = ", ".join(map(str, self.kinds))
        near = suggest(str(name), list(self.kinds))
        need(name in self.kinds, f"got a row with environment {name!r}; expected one of {known}{near}")
        return self.kinds[name]

    def reset_arguments(self, prompt, columns: dict) -> dict:
        """What `reset` is given: every column and the prompt, but for the column that selects the environment."""
        left_out = () if None in self.kinds else (ENVIRONMENT_COLUMN,)
        return {"prompt": prompt, **{name: value for name, value in columns.items() if name not in left_out}}

    def check_row(self, prompt, columns: dict) -> None:
        """Raise UserError unless `reset` takes what this row has."""
        kind, given = self.kind_of(columns), self.reset_arguments(prompt, columns)
        try:
            inspect.signature(kind.make().reset).bind(**given)
        except TypeError as error:
            raise UserError(
                f"environment {kind.name}: reset does not take this data ({error}); got the columns "
                f"{', '.join(given)}; expected a parameter for each; try def reset(self, **row)"
            ) from None


def method_names(environment) -> list[str]:
    """Public functions of an environment's class, as TRL finds them."""
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    return [name for name, _ in members if not name.startswith("_")]


def tool_schema(environment, name: str, subject: str, hint: str = HIDE) -> dict:
    """The JSON schema of a method or function, as transformers makes it for TRL; UserError where there would be none.

    Args:
        environment: what has it as an attribute.
        hint: what to try besides.
    """
    from transformers.utils import get_json_schema

    method = getattr(environment, name)
    expected = f"expected type hints, a docstring, and each argument described under Args:{hint}"
    for p in inspect.signature(method).parameters.values():
        fits = p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        need(fits, f"{subject}: tool {name} has the parameter {p}, which a call by name cannot give; {expected}")
    generates = inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method)
    need(not generates, f"{subject}: tool {name} is a generator; expected one that returns its result")
    try:
        return get_json_schema(method)
    except Exception as error:  # transformers raises exceptions of its own, and what evaluating the hints raises
        raise UserError(f"{subject}: tool {name} has no schema ({error}); {expected}") from None


def check_hooks(environment, names: list[str], subject: str) -> None:
    """Raise UserError unless reset, reply and get_reward can be called as the contract says."""
    form = "def reset(self, **row) -> str | None"
    need("reset" in names, f"{subject}: got a class without reset; expected {form}; try TRL's contract of environments")
    for name, arguments, form in (("reply", [""], "def reply(self, text)"), ("get_reward", [], "def get_reward(self)")):
        if name not in names:
            continue
        signature = inspect.signature(getattr(environment, name))
        try:
            signature.bind(*arguments)
        except TypeError as error:
            raise UserError(f"{subject}: got {name}{signature} ({error}); expected {form}") from None


def environment_kind(name: str, make, file: str, spec: str) -> EnvironmentKind:
    """Make an environment once to see what it can do; raise UserError where it breaks the contract."""
    subject = f"environment {spec!r}" if name in spec else f"environment {spec!r}, {name!r}"
    got = f"{subject}: got a {type(make).__name__}"
    need(callable(make), f"{got}; expected a class or a function that makes environments")
    try:
        environment, other = make(), make()
    except Exception as error:
        where, raised = fault_place(error, file), f"{type(error).__name__}: {error}"
        text = f"{subject}: making one raises at {where}: {raised}; expected a call without arguments"
        raise UserError(text) from error
    need(environment is not other, f"{subject}: got the same object twice; expected a new one for each conversation")
    names = method_names(environment)
    check_hooks(environment, names, subject)
    tools = [tool_schema(environment, tool, subject) for tool in names if tool not in HOOKS]
    return EnvironmentKind(name, make, file, tools, "reply" in names, "get_reward" in names)


def load_environments(spec: str) -> Environments:
    """Load `FILE.py:NAME`, a class, a function that makes environments, or a dictionary of those.

    Raises:
        UserError: there is no such file or name, or it breaks the contract.
    """
    file, _, name = spec.rpartition(":")
    need(file and Path(file).is_file(), f"got environment {spec!r}: no file {file!r}; expected FILE.py:Class")
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


def fault_place(error: BaseException, file: str) -> str:
    """FILE:LINE of the line of a file in which an error was raised, else of the innermost line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    in_file = [frame for frame in frames if Path(frame.filename).resolve() == Path(file).resolve()]
    frame = (in_file or frames or [None])[-1]
    return f"{frame.filename}:{frame.lineno}" if frame else file


def environment_fault(kind: EnvironmentKind, method: str, row: str, error: BaseException) -> EnvironmentFault:
    """The error that stops a run where an environment's own method raised."""
    where, raised = fault_place(error, kind.file), f"raised {type(error).__name__}: {error}"
    return EnvironmentFault(f"environment {kind.name}, {row}: {method} {raised} at {where}")


# ------------------------------------------------------------------- tool calls (src/parts/environments/tool_calls.py)


class BadCall(Exception):
    """A tool call that cannot be read; the message is for the model."""


def tool_call(name, arguments, identity: str = "") -> dict:
    """A tool call as chat templates and TRL have it; BadCall unless the arguments are an object."""
    if isinstance(arguments, str):  # as in OpenAI's API
        arguments = json.loads(arguments or "{}")
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        raise BadCall('a call needs a name and arguments: {"name": "...", "arguments": {...}}')
    json.dumps(arguments)  # what cannot be written to a log, such as a depth of thousands, is no argument either
    call = {"type": "function", "function": {"name": name, "arguments": arguments or {}}}
    return {"id": identity, **call} if isinstance(identity, str) and identity else call


def call_of_json(value) -> dict:
    """A tool call from {"name", "arguments" or "parameters", "id" if it has one}."""
    if not isinstance(value, dict):
        raise BadCall('a call is an object: {"name": "...", "arguments": {...}}')
    return tool_call(value.get("name"), value.get("arguments", value.get("parameters")), value.get("id", ""))


def hermes_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen2.5, Qwen3, SmolLM3."""
    before, *blocks = text.split("<tool_call>")
    return before, [call_of_json(json.loads(block.split("</tool_call>")[0])) for block in blocks]


def typed_argument(value: str, schema: dict):
    """An argument written as text: kept where the tool takes a string, else read as JSON if it is."""
    if schema.get("type") == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


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
    """`{"name": …, "parameters": {…}}` and nothing else, several apart by `;`: Llama 3.1 to 3.3."""
    rest = text.strip().removeprefix("<|python_tag|>").strip()
    if not (rest.startswith("{") and '"name"' in rest):
        return text, []
    calls = []
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        calls.append(call_of_json(value))
        rest = rest[end:].lstrip("; \n")
    return "", calls


def mistral_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`[TOOL_CALLS][{"name", "arguments", "id"}]`, or since version 11 `[TOOL_CALLS]name[ARGS]{…}` for each call."""
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


def deepseek_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """After `<｜tool▁call▁begin｜>` a name and JSON: in a block in V3 and R1, apart by `<｜tool▁sep｜>` in V3.1."""
    before, *blocks = text.split("<｜tool▁call▁begin｜>")
    calls = []
    for block in blocks:
        first, _, rest = block.split("<｜tool▁call▁end｜>")[0].partition("<｜tool▁sep｜>")
        if first.strip() == "function":
            first, _, rest = rest.partition("\n")
        rest = rest.strip().removeprefix("```json").removesuffix("```")
        calls.append(tool_call(first.strip(), json.loads(rest)))
    return before.replace("<｜tool▁calls▁begin｜>", ""), calls


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


# By name: how to read a format, and what of a chat template shows that it is the model's.
CALL_FORMATS = {
    "qwen_xml": (qwen_xml_calls, "<function="),
    "hermes": (hermes_calls, "<tool_call>"),
    "mistral": (mistral_calls, "[TOOL_CALLS]"),
    "deepseek": (deepseek_calls, "<｜tool▁call▁begin｜>"),
    "pythonic": (pythonic_calls, "<|tool_call_start|>"),
    "llama3_json": (llama3_json_calls, '"parameters": '),
}


def trl_response_template(tokenizer) -> dict | None:
    """The response template that TRL, where it is installed, knows for the tokenizer's chat template."""
    try:
        from trl.chat_template_utils import add_response_schema

        return add_response_schema(copy.copy(tokenizer)).response_template
    except (ImportError, ValueError):
        return None


def call_format(tokenizer, choice: str = "") -> str | dict:
    """How a model writes tool calls: the choice, or the tokenizer's response template, or what its chat template shows.

    Returns:
        A name in CALL_FORMATS, or a response template of transformers.
    """
    known = [*CALL_FORMATS, "template"]
    need(
        not choice or choice in known,
        f"got tool format {choice!r}; expected {', '.join(known)}{suggest(choice, known)}",
    )
    response_template = getattr(tokenizer, "response_template", None)
    if response_template and choice in ("", "template"):
        return response_template
    need(choice != "template", "got tool format 'template', but the tokenizer has no response_template")
    text = tokenizer.get_chat_template() if tokenizer.chat_template else ""
    if choice:
        return choice
    if "<arg_key>" not in text:  # GLM's `<tool_call>` holds no JSON
        for name, (_, mark) in CALL_FORMATS.items():
            if mark in text:
                return name
    trl_template = trl_response_template(tokenizer)
    if trl_template is None:
        raise UserError(
            f"got a chat template that shows no known form of tool calls; expected one of {', '.join(CALL_FORMATS)}; "
            "try naming it, or a tokenizer with a response_template (transformers' response parsing)"
        )
    return trl_template


@functools.cache  # said once
def warn_of_untagged_call(tool: str, form: str) -> None:
    bare = "" if form == "llama3_json" else "--tool_format llama3_json where the whole answer is JSON, "
    say(
        f"warning: got the JSON of a call of {tool} outside the form {form}; it stays text, as in vLLM and TRL; "
        f"try {bare}a warm start on calls in that form, or a model that was trained on it"
    )


def check_untagged_call(text: str, form: str, schemas: list[dict]) -> None:
    """Warn where text without calls holds the JSON of one, bare or in a code fence, as Qwen2.5-Coder writes it."""
    names = {schema["function"]["name"] for schema in schemas}
    named = [name for name in re.findall(r'"name"\s*:\s*"([^"]+)"', text) if name in names]
    if named and re.search(r'"(arguments|parameters)"\s*:', text):
        warn_of_untagged_call(named[0], form)


def read_by_template(tokenizer, template: dict, prompt_ids: list[int], ids: list[int], schemas: list[dict]) -> dict:
    """The assistant's message by a response template of transformers."""
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
    """The assistant's message, and what is wrong with its tool calls ("" where nothing is).

    Args:
        form: what `call_format` returned.
        prompt_ids, ids: the tokens before the answer and those of the answer.
        text: the answer without its end token; what is thought in `<think>` is no call.
    """
    try:
        if isinstance(form, dict):
            message = read_by_template(tokenizer, form, prompt_ids, ids, schemas)
            if not message.get("tool_calls"):
                check_untagged_call(message["content"], "the response template", schemas)
            return message, ""
        thought, closed, rest = text.rpartition("</think>")
        begun = bool(prompt_ids) and tokenizer.decode(prompt_ids[-8:]).rstrip().endswith("<think>")
        if not closed and (begun or text.lstrip().startswith("<think>")):
            return {"role": "assistant", "content": text}, ""
        content, calls = CALL_FORMATS[form][0](rest, schemas)
    except BadCall as error:
        return {"role": "assistant", "content": text}, str(error)
    except Exception as error:  # json, ast and transformers' parsers raise what they like on hostile text
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        return {"role": "assistant", "content": text}, f"the tool call cannot be read ({reason})"
    if not calls:
        check_untagged_call(rest, form, schemas)
        return {"role": "assistant", "content": text}, ""
    return {"role": "assistant", "content": (thought + closed + content).rstrip("\n"), "tool_calls": calls}, ""


# --------------------------------------------------------------------- tool runs (src/parts/environments/tool_runs.py)

SHORT_INTERVAL = 1e-4  # seconds after which a loop written in Python gives way; Python's 5 ms add up over 256 of them
POLL = 0.02  # seconds between two looks at who is out of time
LOOP_PATIENCE = 30.0  # seconds in which an event loop that nothing blocks answers even on a busy machine


@dataclass
class Outcome:
    """What a call came to: a value, or the error that it raised; `seconds` is the time that it took."""

    value: object = None
    error: BaseException | None = None
    seconds: float = 0.0


class OutOfTime(Exception):
    """A call gave no answer within its limit."""


class LeftBehind(SystemExit):
    """Raised in the thread of a job that is out of time; threads end by SystemExit without a word."""


async def limited(awaitable, seconds: float, limit: float):
    """The result of an awaitable, or OutOfTime after the seconds that are left of a limit."""
    try:
        async with asyncio.timeout(seconds) as clock:
            return await awaitable
    except TimeoutError:
        if not clock.expired():
            raise  # the function's own
        raise OutOfTime(f"no answer in {limit:g} s") from None


class Job(threading.Thread):
    """A thread that makes calls in order, as soon as it is let go, and notes what each came to."""

    def __init__(self, calls: list, seconds: float):
        super().__init__(name="environment", daemon=True)
        self.calls, self.seconds, self.begun, self.outcomes = calls, seconds, math.inf, []
        self.loop, self.awaits = reward_loop().loop, False  # made here: a job may be ended at any instruction
        self.gate = threading.Lock()
        self.gate.acquire()

    def run(self) -> None:
        """Make the calls."""
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
        """A value, or what it comes to in the event loop where it is awaitable."""
        if not inspect.isawaitable(value):
            return value
        self.awaits = True
        try:
            return asyncio.run_coroutine_threadsafe(limited(value, seconds, self.seconds), self.loop).result()
        finally:
            self.awaits = False

    def over(self) -> bool:
        """Whether its time is up; a job that has not come to its turn yet has all of it."""
        return time.monotonic() >= self.begun + self.seconds


def leave_behind(thread: threading.Thread) -> None:
    """Raise LeftBehind in a thread as soon as it executes Python again."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(LeftBehind))


def with_missing(calls: list, outcomes: list[Outcome], seconds: float) -> list[Outcome]:
    """The outcomes of a job; the call that ran when time was up, and those after it, have OutOfTime."""
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


def run_jobs(jobs: list[list], seconds: float, side_by_side: int = 256) -> list[list[Outcome]]:
    """Run jobs side by side and return the outcomes of their calls.

    Args:
        jobs: lists of functions without arguments; those of a job run in order.
        seconds: limit for each job, from its begin; all begin at once as long as there are no more than `side_by_side`.

    Raises:
        UserError: an async function blocks the event loop.
    """
    results = []
    for start in range(0, len(jobs), side_by_side):
        results += run_together(jobs[start : start + side_by_side], seconds)
    return results


def run_together(jobs: list[list], seconds: float) -> list[list[Outcome]]:
    """`run_jobs` for jobs that all run at once."""
    threads, interval = [Job(calls, seconds) for calls in jobs], sys.getswitchinterval()
    late, awaited = {}, False
    try:
        for thread in threads:
            thread.start()
        sys.setswitchinterval(SHORT_INTERVAL)
        for thread in threads:
            thread.gate.release()  # not before all have started: a start would wait for those that never give way
        while waiting := [thread for thread in threads if thread.is_alive() and thread not in late]:
            for thread in filter(Job.over, waiting):
                late[thread], awaited = [*thread.outcomes], awaited or thread.awaits
                leave_behind(thread)
            waiting[0].join(POLL)
        if awaited:
            check_loop()
    finally:
        sys.setswitchinterval(interval)
    return [with_missing(thread.calls, late.get(thread, thread.outcomes), seconds) for thread in threads]


# ----------------------------------------------------------- control tokens (src/parts/environments/control_tokens.py)

OPENS, CLOSES = "\U000f0000", "\U000f0001"  # of private use: around control tokens in messages


def sanitizes(tokenizer) -> bool:
    """Whether a tokenizer's own `apply_chat_template` keeps control tokens out of messages."""
    return "sanitize_control_tokens" in inspect.signature(tokenizer.apply_chat_template).parameters


def control_tokens(tokenizer, template: str) -> list[str]:
    """Tokens that messages may not write, the longest first: special ones, and added ones that the template writes."""
    added = tokenizer.added_tokens_decoder.values()
    written = {t.content for t in added if t.special or (t.content in template and not t.content.isspace())}
    return sorted(written, key=len, reverse=True)


def sanitized_ids(tokenizer, messages: list[dict], tools: list[dict] | None, **given) -> list[int]:
    """Token ids of a conversation; what looks like a control token in it is encoded as the letters it is written with.

    Raises:
        ValueError: the tokenizer reads a control token in any text.
    """
    template = tokenizer.get_chat_template(given.get("chat_template"), tools)
    tokens = "|".join(map(re.escape, control_tokens(tokenizer, template))) or "(?!)"

    def marked(value):
        if isinstance(value, str):
            return re.sub(tokens, rf"{OPENS}\g<0>{CLOSES}", value.replace(OPENS, "").replace(CLOSES, ""))
        if isinstance(value, dict):
            return {key: marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list | tuple) else value

    text = tokenizer.apply_chat_template(marked(messages), tools=marked(tools), tokenize=False, **given)
    # text, a marked token, text, …; None stands for a lone mark, whose fellow the template has cut away
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
    """Token ids of text within a conversation: after a newline, as SentencePiece puts a space before a beginning."""

    def encoded(text: str) -> list[int]:
        return letter_ids(tokenizer, text) if as_letters else tokenizer.encode(text, add_special_tokens=False)

    newline = tokenizer.encode("\n", add_special_tokens=False)
    ids = encoded("\n" + piece)
    return ids[len(newline) :] if ids[: len(newline)] == newline else encoded(piece)


def letter_ids(tokenizer, text: str) -> list[int]:
    """Token ids of text by the tokenizer's model alone: no added token is looked for."""
    backend = tokenizer.backend_tokenizer
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
    return [token.id for word in words for token in backend.model.tokenize(word)]


# ----------------------------------------------------------------- turn bridge (src/parts/environments/turn_bridge.py)

PROBE_TURNS = 3
KNOWN_SEAMS = 1000
KNOWN_RENDERINGS = 256


class TurnBridge:
    """Renders prompts, and the tokens between the turns of a conversation.

    Args:
        tokenizer: one with a chat template.
        end_ids: tokens that end an answer when they are sampled.
        settings: the template's own settings, such as {"enable_thinking": False}.
        chat_template: another template than the tokenizer's.
    """

    def __init__(self, tokenizer, end_ids: list[int], settings: dict | None = None, chat_template: str | None = None):
        need(
            tokenizer.chat_template or chat_template,
            "got a tokenizer without chat template; expected one; try --chat_template FILE",
        )
        self.tokenizer, self.end_ids, self.settings = tokenizer, {*end_ids}, {**(settings or {})}
        self.chat_template, self.seams = chat_template, {}
        self.lock = threading.Lock()  # a tokenizer's backend refuses two threads at once
        self.sanitizes, self.rendered = sanitizes(tokenizer), {}
        if chat_template:
            self.settings["chat_template"] = chat_template

    def render(self, messages: list[dict], tools: list[dict], guarded: bool = True) -> list[int]:
        """Token ids of messages and the beginning of the assistant's next answer.

        Args:
            guarded: what looks like a control token in a message is encoded as the letters that it is written with.
        """
        messages = with_arguments(as_object, messages)
        if messages[-1]["role"] == "assistant":  # of the data's prompt: it is gone on with
            return self.render(messages[:-1], tools, guarded) + self.begun_answer(messages, tools)
        given = {"tools": tools or None, "add_generation_prompt": True, **self.settings}  # templates take [] for tools
        if not guarded:
            return list(self.tokenizer.apply_chat_template(messages, return_dict=True, **given)["input_ids"])
        key = (id(tools), repr(messages))  # the conversations of a group begin alike, and often hear the same
        with self.lock:
            if key not in self.rendered:
                if len(self.rendered) >= KNOWN_RENDERINGS:
                    self.rendered.clear()
                try:
                    ids = self.guarded(messages, given)
                except ValueError:
                    ids = self.guarded(self.parted(messages), given)
                self.rendered[key] = tools, ids  # the tools are kept, or others get their id
            return [*self.rendered[key][1]]

    def begun_answer(self, messages: list[dict], tools: list[dict]) -> list[int]:
        """Token ids of the assistant's turn that ends messages, as far as it goes, after the beginning of a turn."""
        given = {"tools": tools or None, **self.settings}
        before, whole = (chat_text(self.tokenizer, part, **given) for part in (messages[:-1], messages))
        if not whole.startswith(before):
            raise ValueError(f"it begins the assistant turn that ends the prompt in another way: {whole[-80:]!r}")
        return list(self.tokenizer(whole.removeprefix(before), add_special_tokens=False).input_ids)

    def guarded(self, messages: list[dict], given: dict) -> list[int]:
        """Token ids of messages in which nothing is read as a control token."""
        if not self.sanitizes:
            return sanitized_ids(self.tokenizer, messages, **given)
        given = {**given, "sanitize_control_tokens": True, "return_dict": True}
        return list(self.tokenizer.apply_chat_template(messages, **given)["input_ids"])

    def parted(self, value):
        """Messages with control tokens written apart, for tokenizers that read them in any text (`</s>` as `< /s>`)."""
        if isinstance(value, dict):
            return {key: self.parted(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.parted(item) for item in value]
        for token in self.tokenizer.added_tokens_encoder if isinstance(value, str) else ():
            value = value.replace(token, f"{token[0]} {token[1:]}") if token.strip() else value
        return value

    def ends(self, ids: list[int]) -> bool:
        """Whether an answer ended by itself, and was not cut off."""
        return bool(ids) and ids[-1] in self.end_ids

    def seam(
        self, before: list[dict], answer: dict, replies: list[dict], tools: list[dict], guarded: bool = True
    ) -> list[int]:
        """The rendering up to the token that ends the answer; [] where the template writes none there."""
        begins = len(self.render(before, tools, guarded))
        others = [[{**reply, "content": text} for reply in replies] for text in "01"]
        one, two = (self.render([*before, answer, *other], tools, guarded) for other in others)
        shared = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
        places = [i for i in range(begins, shared) if one[i] in self.end_ids]
        return one[: places[-1] + 1] if places else []

    def known_seam(self, before: list[dict], answer: dict, replies: list[dict], tools: list[dict]) -> list[int]:
        """`seam`, found once for replies that differ by their content only."""
        key = (id(tools), *((reply["role"], reply.get("name"), reply.get("tool_call_id")) for reply in replies))
        if key not in self.seams:
            if len(self.seams) >= KNOWN_SEAMS:  # names and ids are the model's, so there is no end of them
                self.seams.clear()
            self.seams[key] = tools, self.seam(before, answer, replies, tools)  # kept, or another gets its id
        return self.seams[key][1]

    def between(self, last_id: int | None, replies: list[dict], tools: list[dict]) -> list[int]:
        """The tokens after an answer, up to the beginning of the next one.

        Args:
            last_id: the last token of the answer; where it is not the one that ends a turn, that comes first.
            replies: the environment's messages, of the role tool or user.
            tools: the schemas that the prompt was rendered with.
        """
        before, answer, replies = stand_in(replies)
        seam = self.known_seam(before, answer, replies, tools)
        whole = self.render([*before, answer, *replies], tools)
        roles = ", ".join(dict.fromkeys(reply["role"] for reply in replies))
        need(
            seam and whole[: len(seam)] == seam,
            f"the chat template has no place where an answer ends and messages of the role {roles} follow; try "
            "another template",
        )
        return whole[len(seam) - (last_id != seam[-1]) :]

    def check(self, tools: list[dict], talks: bool) -> str:
        """What is wrong with the template for conversations with these tools or replies; "" where nothing is."""
        for kind in [kind for kind, wanted in (("tool", tools), ("user", talks)) if wanted]:
            try:
                problems = [self.probe(kind, tools, place) for place in self.thought_places()]
            except Exception as error:  # templates raise what they like
                return f"it refuses such a conversation ({type(error).__name__}: {error})"
            if all(problems):
                return problems[0]
        return ""

    def thought_places(self) -> list[str]:
        """Fields of an answer in which the template may look for thoughts; [""] where the model is not to think."""
        template = self.chat_template or self.tokenizer.get_chat_template()
        if "</think>" in template:
            return ["content", "reasoning_content"]
        if "<|channel>thought" in template and self.settings.get("enable_thinking"):  # Gemma 4
            return ["reasoning_content"]
        return ["thinking"] if "message.thinking" in template else [""]  # gpt-oss

    def probe(self, kind: str, tools: list[dict], place: str) -> str:
        """Play a conversation of three turns and compare each with the rendering of all; "" if all are equal."""
        messages = [{"role": "user", "content": "Question"}]
        ids, decode = self.render(messages, tools), self.tokenizer.decode
        if kind == "tool" and tools[0]["function"]["name"] not in decode(ids):
            return "it does not show the tools to the model"
        for turn in range(PROBE_TURNS):
            thought, thinks = probe_thought(decode(ids), turn, place)
            answer, replies, visible = probe_turn(kind, turn, thought, tools)
            seam = self.seam(messages, answer, replies, tools, guarded=False)  # thoughts are marked by tokens
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


def stand_in(replies: list[dict]) -> tuple[list[dict], dict, list[dict]]:
    """A short conversation that replies can end: messages, the answer before the replies, and the replies."""
    before, answer = [{"role": "user", "content": "Question"}], {"role": "assistant", "content": "Answer"}
    if replies[0]["role"] == "tool":
        names = [(reply.get("tool_call_id") or f"call{i:05}", reply["name"]) for i, reply in enumerate(replies)]
        answer["content"], answer["tool_calls"] = "", [stand_in_call(*name) for name in names[:1]]
        replies = [{**reply, "tool_call_id": i} for reply, (i, _) in zip(replies, names, strict=True)]
    return before, answer, replies


def stand_in_call(identity: str, name: str) -> dict:
    """A tool call without arguments; Mistral's templates ask for an id of nine characters."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": {}}}


def probe_thought(prompt: str, turn: int, place: str) -> tuple[dict, str]:
    """The field of an answer that holds a thought, and what of it the model has to sample."""
    said, begun = f"Thought {turn}", prompt.rstrip().endswith("<think>")
    if not place or prompt.rstrip().endswith("</think>"):  # it is told not to think
        return {}, ""
    if place == "content":
        return {"content": f"<think>\n{said}\n</think>\n\n"}, f"{'' if begun else '<think>'}{said}</think>"
    return {place: said}, said


def probe_turn(kind: str, turn: int, thought: dict, tools: list[dict]) -> tuple[dict, list[dict], str]:
    """An answer, what follows it, and what has to be seen of the answer."""
    answer = {"role": "assistant", "content": "", **thought}
    if kind == "user":
        visible = f"Answer {turn}"
        answer["content"] += visible
        return answer, [{"role": "user", "content": f"Reply {turn}"}], visible
    call = stand_in_call(f"probe{turn:04}", tools[0]["function"]["name"])
    reply = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": f"Result {turn}"}
    return {**answer, "tool_calls": [call]}, [reply], call["function"]["name"]


def difference(decode, one: list[int], two: list[int]) -> str:
    """Where two renderings part, as text."""
    part = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return f"{decode(one[part : part + 12])!r} becomes {decode(two[part : part + 12])!r}"


def training_template(tokenizer) -> str | None:
    """TRL's form of a tokenizer's chat template that keeps earlier turns, where TRL is installed and has one."""
    try:
        from trl.chat_template_utils import get_training_chat_template

        return get_training_chat_template(tokenizer)
    except (ImportError, ValueError):
        return None
    except Exception as error:  # its own checks render conversations that a template may refuse
        say(f"note: TRL has no training template for this tokenizer ({error})")
        return None


def turn_bridge(tokenizer, end_ids: list[int], environments: Environments, settings: dict | None = None) -> TurnBridge:
    """The bridge for a model's template, or for TRL's form of it that keeps earlier turns.

    Raises:
        UserError: the template rewrites earlier turns, and there is no other.
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
    """Limits of conversations: turns, tokens, and what a tool may take."""

    turns: int = 8  # answers that are sampled
    tokens: int = 4096  # of a whole conversation, the first prompt included
    answer_tokens: int = 512  # a turn begins only where an answer of this length still fits
    seconds: float = 30.0  # for the tool calls of an answer together, or for a reply
    characters: int = 8000  # of a tool's result; the rest is cut
    side_by_side: int = 256  # conversations whose tools run at once


@dataclass
class Conversation:
    """One conversation, as it was sampled. Lists over response tokens have one entry for each of `response_ids`."""

    number: int  # of the row in its batch
    prompt: object  # of the data
    kind: EnvironmentKind
    environment: object
    messages: list[dict] = field(default_factory=list)  # the prompt's too
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)  # all after the prompt: answers, and what is between them
    response_mask: list[int] = field(default_factory=list)  # 1 = sampled
    rollout_logprobs: list[float] = field(default_factory=list)  # 0.0 where nothing was sampled
    spans: list[tuple[int, int]] = field(default_factory=list)  # of the answers in response_ids
    turn_rewards: list[float] = field(default_factory=list)  # for each answer; they add up to the score
    score: float | None = None  # get_reward, else the sum of the turns' rewards; None where there is neither
    calls: int = 0  # of tools, those that cannot be read included
    failures: int = 0  # calls that ended in an error
    seconds: float = 0.0  # in tools and replies
    ended_by: str = ""  # answer, reply, turns or tokens; the last two are limits
    finished: bool = False  # the last answer ended by itself
    form: str | dict = ""  # of tool calls
    place: str = ""  # where its row stands, where that is not the batch

    @property
    def ids(self) -> list[int]:
        """All tokens so far."""
        return self.prompt_ids + self.response_ids

    @property
    def row(self) -> str:
        """How messages name it."""
        return f"{self.place or f'row {self.number} of the batch'}, prompt {text_of_turns(self.prompt)[:100]!r}"

    @property
    def label(self) -> str:
        """How messages name it with its environment."""
        return f"environment {self.kind.name}, {self.row}"


def call_hooks(method: str, calls: list[tuple[Conversation, dict]], limits: PlayLimits) -> list:
    """Call a method of each environment, in order and in this thread as TRL does; async ones side by side.

    Raises:
        EnvironmentFault: it raised.
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
        except Exception as error:
            raise environment_fault(conversation.kind, method, conversation.row, error) from error
    for i, results in zip(waiting, run_jobs([*waiting.values()], limits.seconds, limits.side_by_side), strict=True):
        outcomes[i] = results[0]
    return [checked(method, c, outcome) for (c, _), outcome in zip(calls, outcomes, strict=True)]


def checked(method: str, conversation: Conversation, outcome: Outcome):
    """What an environment's own method returned; raise EnvironmentFault if it raised, or took too long."""
    if isinstance(outcome.error, OutOfTime):
        raise EnvironmentFault(f"{conversation.label}: {method} gave {outcome.error}")
    if outcome.error is not None:
        raise environment_fault(conversation.kind, method, conversation.row, outcome.error) from outcome.error
    return outcome.value


def checked_text(method: str, conversation: Conversation, value) -> str | None:
    """A string or None that an environment returned."""
    if value is None or isinstance(value, str):
        return value
    got = f"{method} returned a {type(value).__name__}"
    raise EnvironmentFault(f"{conversation.label}: {got}; expected a string or None")


def checked_number(name: str, conversation: Conversation, value) -> float:
    """A finite number that an environment gave."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise EnvironmentFault(f"{conversation.label}: got {name} {value!r}; expected a finite number")


def tool_text(tool: Callable, arguments: dict, limit: int):
    """What a tool returns, as text cut to a limit; awaitable where that is. The arguments stay as they are."""
    value = tool(**copy.deepcopy(arguments))
    return awaited_text(value, limit) if inspect.isawaitable(value) else cut(str(value), limit)


async def awaited_text(value, limit: int) -> str:
    """`tool_text` of an async tool."""
    return cut(str(await value), limit)


def cut(text: str, limit: int) -> str:
    """A text, or its beginning and a note of how long it was."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: the first {limit} of {len(text)} characters]"


def error_text(error: BaseException, limit: int) -> str:
    """An error as TRL tells it to the model."""
    try:
        said = str(error) or type(error).__name__
    except Exception:  # of a class whose __str__ raises
        said = type(error).__name__
    return cut(str({"error": said}), limit)


def missing_tool(name: str, /, **arguments) -> None:
    """Raise what TRL does for a tool that is not there."""
    raise ValueError(f"Tool {name} not found.")


def tool_job(conversation: Conversation, limits: PlayLimits) -> list[Callable]:
    """The tool calls of the last answer, to be made in order."""
    calls = []
    for function in [call["function"] for call in conversation.messages[-1].get("tool_calls", ())]:
        name = function["name"]
        known = name in conversation.kind.tool_names
        tool = getattr(conversation.environment, name) if known else functools.partial(missing_tool, name)
        calls.append(functools.partial(tool_text, tool, function["arguments"], limits.characters))
    return calls


def tool_messages(conversation: Conversation, outcomes: list[Outcome], limits: PlayLimits) -> list[dict]:
    """The results of the last answer's tool calls as messages."""
    messages = []
    for call, outcome in zip(conversation.messages[-1]["tool_calls"], outcomes, strict=True):
        failed = outcome.error is not None
        conversation.calls, conversation.failures = conversation.calls + 1, conversation.failures + failed
        content = error_text(outcome.error, limits.characters) if failed else outcome.value
        message = {"role": "tool", "name": call["function"]["name"][:64], "content": content}
        messages.append({**message, "tool_call_id": call["id"]} if "id" in call else message)
    return messages


# ------------------------------------------------------------------------------- play (src/parts/environments/play.py)


def begin(rows: list[dict], environments: Environments, bridge: TurnBridge, limits: PlayLimits) -> list[Conversation]:
    """Make and reset an environment for each row {"prompt", "columns"}; what reset returns is put after the prompt."""
    conversations, calls = [], []
    for number, row in enumerate(rows):
        prompt = row.get("prompt") or ""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else copy.deepcopy(prompt)
        kind = environments.kind_of(row["columns"])
        conversation = Conversation(number, prompt, kind, kind.make(), messages, place=row.get("place", ""))
        given = environments.reset_arguments(messages, row["columns"])
        conversations.append(conversation)
        calls.append((conversation, copy.deepcopy(given)))  # rows are shared by the conversations of a group
    for conversation, value in zip(conversations, call_hooks("reset", calls, limits), strict=True):
        said = checked_text("reset", conversation, value)
        if said is not None:
            at = -2 if conversation.messages[-1]["role"] == "assistant" else -1  # before what the model goes on with
            message = conversation.messages[at]
            conversation.messages[at] = {**message, "content": message["content"] + said}
        try:
            conversation.prompt_ids = bridge.render(conversation.messages, conversation.kind.tools)
        except Exception as error:  # a template raises what it likes, such as "system role not supported"
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


def hear(conversation: Conversation, ids: list[int], logprobs: list[float], bridge: TurnBridge) -> tuple[str, str]:
    """Append a sampled answer; return its text and what is wrong with its tool calls."""
    before = conversation.ids
    conversation.spans.append((len(conversation.response_ids), len(conversation.response_ids) + len(ids)))
    conversation.response_ids += ids
    conversation.response_mask += [1] * len(ids)
    conversation.rollout_logprobs += logprobs
    conversation.finished = bridge.ends(ids)
    text = visible_text(bridge.tokenizer, ids, bridge.end_ids)
    message, problem = {"role": "assistant", "content": text}, ""
    if conversation.kind.tools:
        message, problem = read_answer(bridge.tokenizer, conversation.form, before, ids, text, conversation.kind.tools)
    conversation.messages.append(message)
    return text, problem


def answer_all(conversations: list[Conversation], heard: list[tuple[str, str]], last: bool, limits: PlayLimits) -> list:
    """What the environments say to the answers just heard: messages, or [] where a conversation has ended."""
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
    results = run_jobs([*jobs.values()], limits.seconds, limits.side_by_side)
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
        take_turn_reward(conversation)
    return said


def take_turn_reward(conversation: Conversation) -> None:
    """Note what an environment's `turn_reward` says for the answer just heard, and set it to 0."""
    value = getattr(conversation.environment, "turn_reward", 0.0)
    conversation.turn_rewards.append(checked_number("turn_reward", conversation, value))
    if value:
        conversation.environment.turn_reward = 0.0


def go_on(conversation: Conversation, messages: list[dict], last: bool, bridge: TurnBridge, limits: PlayLimits) -> None:
    """Append an environment's messages and the tokens up to the next answer, or end the conversation at a limit."""
    if conversation.ended_by or not messages:
        return
    if last:
        conversation.ended_by = "turns"
        return
    start, end = conversation.spans[-1]
    between = bridge.between(conversation.response_ids[-1] if end > start else None, messages, conversation.kind.tools)
    if len(conversation.ids) + len(between) + limits.answer_tokens > limits.tokens:
        conversation.ended_by = "tokens"
        return
    conversation.messages += messages
    conversation.response_ids += between
    conversation.response_mask += [0] * len(between)
    conversation.rollout_logprobs += [0.0] * len(between)


def take_turn(
    conversations: list[Conversation], sampled: list, last: bool, bridge: TurnBridge, limits: PlayLimits
) -> None:
    """Hear an answer (ids, logprobs) of each conversation, let the environments answer, and go on or end."""
    heard = [hear(c, [*ids], [*logprobs], bridge) for c, (ids, logprobs) in zip(conversations, sampled, strict=True)]
    for conversation, messages in zip(conversations, answer_all(conversations, heard, last, limits), strict=True):
        go_on(conversation, messages, last, bridge, limits)


def score_all(conversations: list[Conversation], limits: PlayLimits) -> None:
    """Ask the environments for the returns; what the turns' rewards leave of one belongs to the last answer."""
    scoring = [c for c in conversations if c.kind.scores]
    values = call_hooks("get_reward", [(c, {}) for c in scoring], limits)
    for conversation, value in zip(scoring, values, strict=True):
        conversation.score = None if value is None else checked_number("get_reward", conversation, value)
    for conversation in conversations:
        if not conversation.kind.scores and hasattr(conversation.environment, "turn_reward"):
            conversation.score = sum(conversation.turn_rewards)
        if conversation.score is None:  # not applicable, whatever its turns earned
            conversation.turn_rewards = [0.0] * len(conversation.turn_rewards)
        else:
            conversation.turn_rewards[-1] += conversation.score - sum(conversation.turn_rewards)


def play(
    rows: list[dict],
    environments: Environments,
    bridge: TurnBridge,
    sample: Callable,
    limits: PlayLimits,
    form: str | dict = "",
) -> list[Conversation]:
    """Play a conversation for each row.

    Args:
        rows: {"prompt": string or messages, "columns": {…}}; a string is a user's turn.
        sample: `(prompts, numbers, turn) -> [(ids, logprobs), …]`: an answer for each of the prompts, token ids;
            `numbers` says of which rows they are, and `turn` counts from 0, for noise that depends on nothing else.
            Ids hold the end token if the answer ended by itself.
        form: how the model writes tool calls, of `call_format`.

    Raises:
        EnvironmentFault: reset, reply or get_reward raised, returned nonsense or, where async or reply, took too long.
    """
    conversations = begin(rows, environments, bridge, limits)
    for conversation in conversations:
        conversation.form = form
    for turn in range(limits.turns):
        now, last = [c for c in conversations if not c.ended_by], turn == limits.turns - 1
        if not now:
            break
        sampled = sample([c.ids for c in now], [c.number for c in now], turn)
        take_turn(now, sampled, last, bridge, limits)
    score_all(conversations, limits)
    return conversations


# ------------------------------------------------------------------- play setup (src/parts/environments/play_setup.py)

OF_ENVIRONMENT = "environment"  # its score among the rewards of a sample

TURN_SETTINGS = ("max_turns", "max_conversation_tokens", "tool_timeout", "tool_characters", "tool_format")


def check_idle(config, converses: bool, names: tuple[str, ...] = TURN_SETTINGS) -> None:
    """Raise UserError for settings of conversations where there are none."""
    usual = type(config)()
    for name in names:
        idle = not converses and getattr(config, name) != getattr(usual, name)
        got = f"got {name} {getattr(config, name)} without an environment"
        need(not idle, f"{got}; expected one beside it; try --environment FILE.py:Class")


def check_room(config, prompt_tokens: int) -> None:
    """Raise UserError where a prompt and an answer are more than a conversation may have."""
    shortest = prompt_tokens + config.max_new_tokens
    need(
        config.conversation_tokens >= shortest,
        f"got max_conversation_tokens {config.max_conversation_tokens}; expected room for a prompt and an answer, "
        f"{prompt_tokens} + {config.max_new_tokens} tokens; try --max_conversation_tokens {2 * shortest}",
    )


def check_fits(config, limit: int | None, bound: str = "max_new_tokens") -> None:
    """Raise UserError if a conversation can be longer than the model's positions.

    Args:
        bound: the setting that bounds an answer.
    """
    need(
        not limit or config.conversation_tokens <= limit,
        f"got conversations of up to {config.conversation_tokens} tokens; expected at most the model's {limit}; try "
        f"--max_conversation_tokens {limit}, or a lower --max_turns or --{bound}",
    )


@dataclass
class PlaySetup:
    """What conversations are played with: environments, the tokens between turns, the form of tool calls, limits."""

    environments: Environments
    bridge: TurnBridge
    form: str | dict
    limits: PlayLimits


def pays(kind: EnvironmentKind) -> bool:
    """Whether an environment says what a conversation is worth."""
    return kind.scores or hasattr(kind.make(), "turn_reward")


def check_chat_template(config, tokenizer) -> None:
    """Raise UserError for a tokenizer that knows no turns."""
    need(
        tokenizer.chat_template,
        f"got --environment, but the tokenizer of {config.model!r} has no chat template; expected one; try "
        "--chat_template FILE, or an instruct model",
    )


def load_scored(config) -> tuple[Environments, Reward]:
    """The environments, and the reward functions beside them, if any; UserError where nothing pays."""
    environments = load_environments(config.environment)
    reward = Reward(config.reward, call_limits(config))
    check_environments(config, environments, reward.functions)
    return environments, reward


def check_environments(config, environments: Environments, functions) -> None:
    """Raise UserError where nothing pays, or a setting of tools has none.

    Args:
        functions: names of the reward functions beside the environments.
    """
    need(
        OF_ENVIRONMENT not in functions,
        f"got a reward function {OF_ENVIRONMENT!r}, the name of the environment's own score; try another name",
    )
    for kind in environments.kinds.values():
        need(
            functions or pays(kind),
            f"environment {kind.name}: got no get_reward and no --reward; expected one of them; try def "
            "get_reward(self) -> float",
        )
    tools = any(kind.tools for kind in environments.kinds.values())
    need(tools or not config.tool_format, f"got tool_format {config.tool_format} for an environment without tools")


def check_environment_rows(environments: Environments, rows: list[dict]) -> None:
    """Raise UserError for a row that `reset` does not take; rows with the same columns are tried once."""
    tried = set()
    for row in rows:
        key = (environments.kind_of(row["columns"]).name, *row["columns"])
        if key not in tried:
            environments.check_row(row["prompt"], row["columns"])
            tried.add(key)


def make_play_setup(config, tokenizer, end_ids: list[int], environments: Environments) -> PlaySetup:
    """What is needed to play; UserError for a chat template that cannot be continued, or shows no form of calls."""
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
    """Rows whose prompts are rendered with the tools of their environment; those that are then too long are left out.

    What `reset` adds to a prompt is not known before a conversation begins, and not in it.

    Args:
        limit: the setting that bounds a prompt.
    """
    kept, most = [], getattr(config, limit)
    for row in rows:
        prompt, tools = row["prompt"], setup.environments.kind_of(row["columns"]).tools
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            ids = setup.bridge.render(turns, tools)
        except ValueError as error:
            raise UserError(
                f"{source}: got prompt {str(prompt)[-80:]!r}, which the template refuses: {error}"
            ) from error
        kept += [row | {"prompt_ids": ids}] if len(ids) <= most else []
    too_long = f"{len(rows) - len(kept)} of {len(rows)} prompts longer than {most} tokens with tools"
    need(kept or not rows, f"{source}: got {too_long}; expected some that fit; try a higher --{limit}")
    if len(kept) < len(rows):
        say(f"{source}: left out {too_long}")
    return kept


def score_talks(setup: PlaySetup, rows: list[dict], conversations: list[Conversation], reward: Reward) -> list[dict]:
    """Scores of conversations by name, the environment's own and those of the reward functions; one dict a row.

    The first name is what a held-out row's full marks are: the environment's if it pays.
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
    """Rows with the prompts that began their conversations, and the messages after these."""
    begun = [message_count(row) for row in rows]
    seen = [{**row, "prompt": t.messages[:n]} for row, t, n in zip(rows, conversations, begun, strict=True)]
    return seen, [t.messages[n:] for t, n in zip(conversations, begun, strict=True)]


def score_weights(reward: Reward, names) -> dict[str, float]:
    """What each score counts in a conversation's return."""
    return {name: 1.0 if name == OF_ENVIRONMENT else reward.weights[name] for name in names}


def message_count(row: dict) -> int:
    """How many messages a row's prompt is."""
    return 1 if isinstance(row["prompt"], str) else len(row["prompt"])


def pieces(tokenizer, conversation: Conversation) -> list[dict]:
    """The text after the prompt, in pieces that were sampled and pieces that were not."""
    parts, end_before, all_ids = [], 0, conversation.response_ids
    for start, end in conversation.spans:
        for sampled, ids in ((False, all_ids[end_before:start]), (True, all_ids[start:end])):
            parts += [{"sampled": sampled, "text": tokenizer.decode(ids)}] if ids else []
        end_before = end
    return parts


# ------------------------------------------------------------------------------- models (src/parts/networks/models.py)

RENAMED = ".*is_gradient_checkpointing.*deprecated.*"  # peft asks by the old name
LOADABLE = "expected a checkpoint folder, or a hub id that this machine has or can reach"
# what transformers offers for training and sampling; auto is its own choice, sdpa where the architecture has it
ATTENTION_KINDS = ("auto", "eager", "sdpa", *(f"flash_attention_{i}" for i in (2, 3, 4)), "flex_attention")


def precision_on(precision: str, device) -> str:
    """The precision that a setting stands for on a device; auto is bf16 where a CUDA GPU has it, else fp32."""
    if precision != "auto":
        return precision
    able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if able else "fp32"


def leave_out_cudnn_attention() -> None:
    """Let torch choose among its own kernels: cuDNN's plans anew (23 to 37 ms) for each length, so for each token."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def settle_precision(config: BaseConfig, device) -> None:
    """Replace `auto` in config, choose TF32 or not, and on a GPU say both.

    Below fp32, what stays float32 (the output layer) may use TF32: it is still finer than bf16. In fp32 nothing does.
    """
    asked, config.precision = config.precision, precision_on(config.precision, device)
    exact = config.precision == "fp32"
    leave_out_cudnn_attention()
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
    """Context in which the networks run; nothing in fp32."""
    dtype = compute_dtype(config, device)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def config_file(source: str) -> str | None:
    """adapter_config.json of a folder or hub id; None where there is none, as in a plain model."""
    if Path(source).is_dir():
        file = Path(source) / "adapter_config.json"
        return str(file) if file.is_file() else None
    if not is_hub_id(source):
        return None
    from transformers.utils import find_adapter_config_file

    hub_is_reached()  # or its client would try again for a minute
    return find_adapter_config_file(source)


def merge_command(source: str, *flags: str) -> str:
    """The command that merges an adapter into its base."""
    script = BUNDLE / "scripts" / "merge_adapter.py"
    words = ["python", str(script if script.is_file() else "scripts/merge_adapter.py"), source, *flags]
    return f"`{shlex.join([*words, '--output', Path(source).name + '-merged'])}`"


def refuse_adapter(source: str, flag: str, why: str) -> None:
    """Raise UserError where a model is an adapter and a whole one is needed."""
    adapter = f"got {flag} {source!r}, a LoRA adapter, {why}; expected a whole model; try {merge_command(source)}"
    need(not config_file(source), adapter)


def adapter_settings(source: str) -> dict | None:
    """adapter_config.json of a LoRA adapter; None of a plain model, UserError for other kinds of adapters."""
    file = config_file(source)
    if not file:
        return None
    got = f"got the adapter {source!r}"
    try:
        settings = json.loads(Path(file).read_text(encoding="utf-8"))
        task, kind = settings.get("task_type"), settings.get("peft_type")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{got}, whose adapter_config.json is broken: {error}; expected peft's") from None
    need(task in (None, "CAUSAL_LM"), f"{got} of task type {task}; expected CAUSAL_LM")
    need(kind == "LORA", f"{got} of type {kind}; expected LORA; try to merge it with the library that trained it")
    if Path(source).is_dir():
        whole = [x.name for form in ("model*.safetensors", "pytorch_model*.bin") for x in Path(source).glob(form)]
        both = f"{got} beside the weights of a whole model ({', '.join(whole[:2])}); expected one of them"
        need(not whole, f"{both}; try to move the files adapter_* to a folder of their own")
        weights = any((Path(source) / f"adapter_model.{end}").exists() for end in ("safetensors", "bin"))
        need(weights, f"{got} without adapter_model.safetensors; expected its weights beside adapter_config.json")
    return settings


def base_of(source: str, base: str = "") -> str:
    """The base that an adapter names, or the `base` given for it; a plain model is its own."""
    settings = adapter_settings(source)
    if not settings:
        return source
    base = base or settings.get("base_model_name_or_path") or ""
    is_here = Path(base).is_dir() if base else False
    need(
        is_here or is_hub_id(base),
        f"got the adapter {source!r}, whose base {base!r} is not there; expected a folder, as seen from here, or a hub "
        f"id; try {merge_command(source, '--base', 'FOLDER')}, or to fix adapter_config.json",
    )
    chain = f"got the adapter {source!r}, whose base {base!r} is an adapter itself; expected a whole model"
    need(not config_file(base), f"{chain}; try {merge_command(base)}, and that folder as base")
    return str(Path(base).resolve()) if is_here else base


def tokenizer_of(source: str, base: str = "") -> str:
    """Where the tokenizer of a model lies: in an adapter's own folder, or else in that of its base."""
    if not adapter_settings(source):
        return source
    from transformers.utils import cached_file

    files = ("tokenizer_config.json", "tokenizer.json")
    quiet = {f"_raise_exceptions_for_{problem}": False for problem in ("missing_entries", "connection_errors")}
    has_tokenizer = any(cached_file(source, name, **quiet) for name in files)
    return source if has_tokenizer else base_of(source, base)


def saved_rows(base, weights: dict) -> dict:
    """{layer: rows} of the embedding and output layers that are among an adapter's tensors."""
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
    """Give a base the rows that an adapter has saved for added tokens; UserError where it has not saved them."""
    from peft.utils import load_peft_weights

    known = base.get_input_embeddings().weight.shape[0]
    rows = saved_rows(base, load_peft_weights(source, device="cpu"))
    size = max(rows.values(), default=known)
    tied = base.get_input_embeddings().weight is base.get_output_embeddings().weight
    beyond = set()
    if tokenizer_of(source) == source:
        tokens = transformers.AutoTokenizer.from_pretrained(source).get_vocab()
        beyond = {token for token, i in tokens.items() if i >= size}
    if beyond:  # a plain model may have a few, too
        beyond -= transformers.AutoTokenizer.from_pretrained(base.name_or_path).get_vocab().keys()
    need(
        not beyond and (size <= known or tied or len(rows) == 2),
        f"got the adapter {source!r}, whose tokenizer has tokens beyond the {known} rows of its base, as "
        f"{sorted(beyond)[:3] or f'row {known}'}, and which has not saved their embeddings; expected both layers; try "
        "to save it again with save_pretrained(..., save_embedding_layers=True), or to train with modules_to_save",
    )
    if size != known:
        base.resize_token_embeddings(size, mean_resizing=False)  # the rows are loaded


def with_adapter(base, source: str, trainable: bool = False, dropout: float = 0.0):
    """A base with an adapter on top, in eval mode; UserError where they do not fit."""
    from peft import PeftConfig, PeftModel
    from safetensors import SafetensorError

    settings = PeftConfig.from_pretrained(source)
    settings.base_model_name_or_path = base.name_or_path
    settings.lora_dropout = dropout
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
    """A network by transformers; for an adapter, its causal `base`, on which it was trained, with it on top."""
    start = base_of(source, base)
    if start == source:
        return auto_class.from_pretrained(source, **options)
    return with_adapter(transformers.AutoModelForCausalLM.from_pretrained(start, **options), source, trainable)


def merged(model):
    """The network with its adapter merged into the weights; a plain one as it is."""
    if not hasattr(model, "merge_and_unload"):
        return model
    untie(model)
    plain = model.merge_and_unload()
    note_untied(plain)
    return plain


def untie(model) -> None:
    """Weights of its own for the output layer where input and output share theirs and LoRA changes one of them."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    ends = [model.get_base_model().get_input_embeddings(), model.get_base_model().get_output_embeddings()]
    tuned = [isinstance(layer, BaseTunerLayer) for layer in ends]
    first, last = (layer.get_base_layer() if t else layer for layer, t in zip(ends, tuned, strict=True))
    if any(tuned) and first.weight is last.weight:
        last.weight = torch.nn.Parameter(last.weight.detach().clone())


def note_untied(model) -> None:
    """Let config.json say so where the output layer has weights of its own, or other programs would not read them."""
    if model.get_input_embeddings().weight is not model.get_output_embeddings().weight:
        model.config.tie_word_embeddings = False


@dataclass
class Models:
    """The networks of a run and what they share."""

    policy: object
    critic: object  # None unless the advantages are GAE's
    reference: object  # None without KL; the policy itself under LoRA, used with its adapters off
    tokenizer: object
    eos_ids: list[int]
    pad_id: int
    device: object

    @property
    def networks(self) -> list:
        """All networks whose states are asked for: policy, critic, reference; None where there is none."""
        return [self.policy, self.critic and self.critic.backbone, self.reference]


def attention_choice(config: BaseConfig) -> dict:
    """What --attn_implementation adds to the arguments of from_pretrained and from_config."""
    kind = config.attn_implementation
    return {} if kind == "auto" else {"attn_implementation": kind}


def refuse_attention(config: BaseConfig, source: str, why: object) -> UserError:
    """The error for an attention that is not installed, or that an architecture or a device does not have."""
    kind = config.attn_implementation
    package = ", or `pip install kernels`, with which transformers fetches it for a GPU" * kind.startswith("flash")
    return UserError(
        f"got --attn_implementation {kind} with model {source!r}: {why}; expected one that is installed and that the "
        f"architecture has; try --attn_implementation auto{package}"
    )


def load_error(config: BaseConfig, source: str, error: Exception) -> UserError:
    """What is told of a model that does not load."""
    if isinstance(error, UserError):
        return error
    if is_out_of_memory(error):
        return memory_shortage(f"while {source!r} was loaded", error, "a smaller model, or a machine with more memory")
    if config.attn_implementation != "auto" and "attention" in str(error).lower():
        return refuse_attention(config, source, error)
    return UserError(f"got model {source!r}, which does not load: {error}; {LOADABLE}")


def ending_ids(ends: int | list[int] | None, tokenizer) -> list[int]:
    """The tokens that end an answer: those of a model's eos_token_id, several in chat models, and the tokenizer's."""
    return sorted({*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None})


def token_count(tokenizer, eos_ids: list[int]) -> int:
    """Rows of an embedding that are tokens; those beyond pad it to a round size and are not to be sampled."""
    return 1 + max(*tokenizer.get_vocab().values(), *eos_ids)


def generation_settings(source: str):
    """The generation settings that come with a model: generation_config.json, else those in its config.json."""
    try:
        return transformers.GenerationConfig.from_pretrained(source)
    except OSError:  # no such file
        return transformers.GenerationConfig.from_model_config(transformers.AutoConfig.from_pretrained(source))


def unwrapped(model):
    """The transformers model inside a peft wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


# ----------------------------------------------------------------------------- batches (src/parts/networks/batches.py)


def left_pad(sequences: list[list[int]], pad_id: int, device):
    """Return (input_ids, attention_mask), both [B, T], pads on the left."""
    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences], device=device)
    mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences], device=device)
    return ids, mask


# ------------------------------------------------------------------------- key cache (src/parts/networks/key_cache.py)

BLOCK = 64  # columns that a room grows by
# bytes of a layer's keys and values: to read fewer takes no longer than what saves it, a dozen operations for one
WORTH_ON_CPU, WORTH_ON_GPU = 2**20, 2**27  # measured; reckoned with 4 us for an operation and 3 TB/s


@functools.cache
def roomy_layer():
    """A DynamicLayer of transformers that copies what it holds every BLOCK tokens, and not for each."""
    from transformers.cache_utils import DynamicLayer

    class RoomyLayer(DynamicLayer):
        """`keys` and `values` [B, heads, T, D] are the beginnings of `rooms` [B, heads, T or more, D].

        With a `column` [1], a tensor, the next token is written there and the whole rooms are read.
        """

        column = None

        def __init__(self, keys, values, rooms=None):
            super().__init__()
            keys, values = as_read(keys), as_read(values)
            self.lazy_initialization(keys, values)
            self.keys, self.values, self.rooms = keys, values, rooms

        def update(self, key_states, value_states, *args, **kwargs):
            """Append [B, heads, t, D] of new tokens; return those of all."""
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
            """Let the rooms have `end` columns at least."""
            if self.rooms is None or end > self.rooms[0].shape[2]:
                self.rooms = None
                self.keys, values = roomy(self.keys, end), self.values
                self.values = None  # one at a time: the old tensors go first
                self.rooms = self.keys, roomy(values, end)

        def end_at(self, end: int) -> None:
            """Let the keys and values be the rooms' first columns."""
            self.keys, self.values = (room[:, :, :end] for room in self.rooms)
            self.column = None

        def reorder_cache(self, beam_idx):
            """Keep these rows, in this order."""
            self.keys, self.values, self.rooms = self.keys[beam_idx], self.values[beam_idx], None

        batch_select_indices = reorder_cache

    return RoomyLayer


def as_read(x):
    """Keys or values in the dtype that attention reads them in.

    Under autocast rotary embeddings make them float32, and attention would round all of them again for each token.
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def roomy(x, needed: int):
    """A tensor with room for `needed` columns and a block more, that begins with x [B, heads, T, D]; 0 after it."""
    room = x.new_zeros(*x.shape[:2], needed + BLOCK, x.shape[3])
    room[:, :, : x.shape[2]] = x
    return room


def give_room(cache) -> None:
    """Let each layer of a cache that holds the keys and values of all tokens, and nothing else, grow by blocks."""
    from transformers.cache_utils import Cache, DynamicLayer

    for i, layer in enumerate(cache.layers if isinstance(cache, Cache) else ()):
        if type(layer) is DynamicLayer and layer.is_initialized and layer.keys.dim() == 4:
            cache.layers[i] = roomy_layer()(layer.keys, layer.values)


def has_plain_layers(cache, config) -> bool:
    """Whether a cache holds the keys and values of all tokens, none of which sees only those near it."""
    from transformers.cache_utils import DynamicCache

    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if window or getattr(config, "window_size", None) or not isinstance(cache, DynamicCache):
        return False
    return all(type(layer) is roomy_layer() for layer in cache.layers)


@dataclass
class Part:
    """Rows that left a batch together: whose they are, their keys and values, and which columns are of their text."""

    numbers: list[int]
    layers: list[tuple]  # (keys, values) of each layer, [B, heads, T, D]
    mask: object  # [B, T], 1 = of the text


@dataclass
class KeptTexts:
    """Texts of which the keys and values are kept, by the numbers of their conversations."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

    def take(self, order: list[int], mask, cache, places, rows, lengths) -> None:
        """Keep rows of a batch that is being sampled, without what they were fed after their end.

        Args:
            order: the numbers of the conversations that the batch began with.
            mask: [B, T], 1 on the tokens that they had then.
            places: [b] where in the cache the rows are; None for all, which are then not copied.
            rows: [B'] which of those that the batch began with each row of the cache is.
            lengths: [B] how many tokens each of those has said; the last one was not fed.
        """
        numbers = rows if places is None else rows[places]
        pairs = pairs_of(cache)
        pairs = pairs if places is None else [(keys[places], values[places]) for keys, values in pairs]
        columns = torch.arange(cache.get_seq_length(), device=mask.device)
        before = torch.nn.functional.pad(mask[numbers], (0, len(columns) - mask.shape[1]), value=1)
        of_text = before * (columns < mask.shape[1] + lengths[numbers, None] - 1)
        self.parts.append(Part([order[i] for i in numbers.tolist()], pairs, of_text))

    def begins(self, texts: dict[int, list[int]]) -> bool:
        """Whether each text, by the number of its conversation, begins with the one that is kept, and goes on."""
        known = ((self.ids.get(number), ids) for number, ids in texts.items())
        return all(old is not None and len(ids) > len(old) and ids[: len(old)] == old for old, ids in known)

    def cache_of(self, numbers: list[int], last: bool = True) -> tuple[list[int], object, object]:
        """(numbers in the order of the rows, cache, mask [B, T]) of conversations, whose texts end in the last column.

        `last`: nothing else will be needed, so what is kept is freed layer by layer.
        """
        from transformers.cache_utils import DynamicCache

        wanted, width = {*numbers}, max(len(self.ids[number]) for number in numbers)
        order, masks, places = [], [], []  # places: of each part, its rows [b, 1] and columns [b, at most T]
        for part in self.parts:
            rows = [i for i, number in enumerate(part.numbers) if number in wanted]
            order += [part.numbers[i] for i in rows]
            index = torch.tensor(rows, device=part.mask.device, dtype=torch.long)
            mask, columns = part.mask[index].sort(dim=1, stable=True)
            masks.append(torch.nn.functional.pad(mask, (width, 0))[:, -width:])
            places.append((index[:, None], columns[:, -width:]))
        cache = DynamicCache()
        for layer in range(len(self.parts[0].layers)):
            pairs = [part.layers[layer] for part in self.parts]
            rooms = tuple(gathered([pair[which] for pair in pairs], places, width) for which in (0, 1))
            cache.layers.append(roomy_layer()(*(room[:, :, :width] for room in rooms), rooms))
            for part in self.parts if last else ():
                part.layers[layer] = None  # one layer at a time is there twice
        return order, cache, torch.cat(masks)


def pairs_of(cache) -> list[tuple]:
    """(keys, values) of each layer of a cache with plain layers."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def gathered(tensors: list, places: list[tuple], width: int):
    """A room [B, heads, width + BLOCK, D] of the chosen rows and columns of [., heads, T, D], 0 before where fewer."""
    first = tensors[0]
    room = first.new_zeros(sum(len(rows) for rows, _ in places), first.shape[1], width + BLOCK, first.shape[3])
    start = 0
    for x, (rows, columns) in zip(tensors, places, strict=True):
        picked = x.transpose(1, 2)[rows, columns].transpose(1, 2)
        room[start : start + len(rows), :, width - columns.shape[1] : width] = picked
        start += len(rows)
    return room


def continued(kept: KeptTexts, texts: dict[int, list[int]], read: Callable) -> tuple:
    """Read what is new of texts that begin with kept ones, in groups of like length, so that hardly a pad is read.

    Args:
        read: `(new tokens of each row, mask [B, T], cache) -> (what follows from the last ones [B, …], mask, cache)`,
            the mask and the cache being those of the whole texts.

    Returns:
        (the texts' numbers in the order of the rows, what follows from each text [B, …], mask [B, T], cache).
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
    """Numbers in groups, longest first: the shortest of a group is at least 3/4 of the longest, or 16 shorter."""
    groups, longest = [], 0
    for number in sorted(lengths, key=lambda number: -lengths[number]):
        if not groups or lengths[number] < longest - max(16, longest // 4):
            groups, longest = [*groups, []], lengths[number]
        groups[-1].append(number)
    return groups


def select_rows(cache, rows) -> None:
    """Keep these rows of a cache, in this order; layers with recurrent states know `reorder_cache` alone for it."""
    from transformers.cache_utils import Cache

    overridden = type(cache).batch_select_indices is not Cache.batch_select_indices
    (cache.batch_select_indices if overridden else cache.reorder_cache)(rows)
    if groups := getattr(cache, "groups", None):
        cache.groups = groups.of_rows(rows)


def wide_product(x, y):
    """x @ y of [n, heads, ., .] in float32, as fused attention has it: rounded to bf16, a score of 60 is off by 0.1."""
    x = x.to(y.dtype)
    with torch.autocast(x.device.type, enabled=False):
        if x.is_cuda and x.dtype != torch.float32:
            with contextlib.suppress(NotImplementedError):  # without copies of keys, where the device has it
                return torch.bmm(x.flatten(0, 1), y.flatten(0, 1), out_dtype=torch.float32).unflatten(0, x.shape[:2])
        return x.float() @ y.float()


class Groups:
    """The prompts of B rows: `which` [B] of n each begins with, keys and values [n, heads, P, D], mask [n, P]."""

    def __init__(self, which, pairs: list[tuple], mask):
        self.which, self.pairs, self.mask = which, pairs, mask
        pads = torch.zeros(mask.shape, device=mask.device).masked_fill_(mask == 0, -math.inf)
        self.added = None if bool(mask.all()) else pads[:, None, None]  # to scores [n, heads, rows, P]
        sizes = which.bincount(minlength=len(mask))
        order = which.argsort(stable=True)
        group = which[order]
        place = torch.arange(len(which), device=which.device) - (sizes.cumsum(0) - sizes)[group]
        self.rows = which.new_zeros(len(mask), int(sizes.max()))  # of each prompt; too many are computed for nothing
        self.rows[group, place] = order
        self.back = torch.empty_like(which)
        self.back[order] = group * self.rows.shape[1] + place

    def of_rows(self, chosen) -> "Groups":
        """The groups of some rows, without the prompts that none of these has."""
        kept, which = torch.unique(self.which[chosen], return_inverse=True)
        if len(kept) == len(self.mask):
            return Groups(which, self.pairs, self.mask)
        return Groups(which, [(keys[kept], values[kept]) for keys, values in self.pairs], self.mask[kept])

    def by_prompt(self, x):
        """[B, heads, r, X] of rows as [n, heads, rows of a prompt x r, X]."""
        return x[self.rows].transpose(1, 2).flatten(2, 3)

    def by_row(self, x, r: int):
        """The way back, [B, heads, r, X]."""
        return x.unflatten(2, (-1, r)).transpose(1, 2).flatten(0, 1)[self.back]

    def attend(self, layer: int, query, key, value, scaling: float | None):
        """What one more token of each row, query [B, H, 1, D], sees of its prompt and of its own tokens: [B, 1, H, D].

        key and value [B, heads, T, D] are of the rows' own tokens; H is a multiple of heads.
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
    """A cache of B rows that begin with texts, `which` [B], of one with plain layers, held once each as `groups`."""
    from transformers.cache_utils import DynamicCache

    grouped = DynamicCache()
    grouped.groups = Groups(which, pairs_of(cache), mask)
    for keys, values in grouped.groups.pairs:
        none = (x.new_empty(len(which), x.shape[1], 0, x.shape[3]) for x in (keys, values))
        grouped.layers.append(roomy_layer()(*none))
    return grouped


def worth_grouping(cache, rows: int) -> bool:
    """Whether to hold the texts of a cache once, for more rows, saves time as well as memory."""
    keys, values = pairs_of(cache)[0]
    saved = (keys[0].nbytes + values[0].nbytes) * (rows - len(keys))
    return saved > (WORTH_ON_CPU if keys.device.type == "cpu" else WORTH_ON_GPU)


# ----------------------------------------------------------------------------- forward (src/parts/networks/forward.py)

SHARED_PROMPTS = "shared_prompts"  # the attention's name among those of transformers


def length_that_shares(model) -> float:
    """The same of one network: no more than its layers look back."""
    config = unwrapped(model).config.get_text_config()
    if config._attn_implementation != SHARED_PROMPTS:
        return 0
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size")]
    if not getattr(config, "use_sliding_window", True):
        windows[0] = None
    return min((window for window in windows if window), default=math.inf)


def logprobs_and_entropy(logits_fn, hidden, targets, temperature: float, chunk: int, entropy_grad: bool = False):
    """Log-prob of each target and entropy of its distribution, without holding all logits at once.

    Args:
        logits_fn: maps hidden states [n, H] to logits [n, V].
        hidden: [N, H], the states that predict the targets.
        targets: [N] token ids.
        temperature: logits are divided by it.
        chunk: rows of `hidden` per piece; pieces are recomputed in the backward pass when there are several.
        entropy_grad: let gradients flow through the entropy.

    Returns:
        (logprobs [N], entropy [N]), in float32 or wider.
    """
    from torch.utils.checkpoint import checkpoint

    def piece(h, t):
        logits = logits_fn(h)
        logits = (logits.float() if logits.dtype.itemsize < 4 else logits) / temperature  # [n, V]
        log_z = torch.logsumexp(logits, dim=-1)
        logprobs = logits.gather(-1, t[:, None]).squeeze(-1) - log_z
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_grad):
            z = logits if entropy_grad else logits.detach()
            entropy = log_z - (torch.softmax(z, dim=-1) * z).sum(-1)  # H = log Z - E[logit]
        return logprobs, entropy

    if len(hidden) <= chunk:
        return piece(hidden, targets)
    pieces = zip(hidden.split(chunk), targets.split(chunk), strict=True)
    if torch.is_grad_enabled():
        parts = [checkpoint(piece, h, t, use_reentrant=False) for h, t in pieces]
    else:
        parts = [piece(h, t) for h, t in pieces]
    logprobs, entropy = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropy)


@functools.cache  # asked for every token that is sampled
def takes(network_class, argument: str) -> bool:
    """Whether a network's forward has an argument of this name."""
    return argument in inspect.signature(network_class.forward).parameters


def below_the_head(model):
    """The network below the output layer; Llama 4 has it under another name than its own prefix says."""
    network = unwrapped(model)
    return getattr(network, "model", network) if network.base_model is network else network.base_model


def backbone(model, input_ids, attention_mask, **kwargs):
    """Run the network below the output layer; positions count real tokens, so padding does not shift them."""
    network = below_the_head(model)
    width = input_ids.shape[1]
    if takes(type(network), "position_ids"):
        kwargs["position_ids"] = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, -width:]
    if takes(type(network), "cache_params"):  # Mamba multiplies the new tokens by the mask, and looks back at none
        attention_mask = attention_mask[:, -width:]
    return network(input_ids=input_ids, attention_mask=attention_mask, **kwargs)


def cached_states(model, input_ids, attention_mask, cache):
    """Hidden states [B, t, H] of the new tokens after those of a cache (None: there are none), and the cache."""
    name = "cache_params" if takes(type(below_the_head(model)), "cache_params") else "past_key_values"
    out = backbone(model, input_ids, attention_mask, **{name: cache}, use_cache=True)
    keys_and_values = getattr(out, name, None)
    if cache is None:
        give_room(keys_and_values)
    return out.last_hidden_state, keys_and_values


def masks_itself(model) -> bool:
    """Whether attention takes a ready mask: transformers makes none, and looks at none."""
    return unwrapped(model).config._attn_implementation in ("sdpa", SHARED_PROMPTS)


def next_states(model, token, mask, cache, padded: bool):
    """States [B, H] of one more token [B] for each row of a plain cache, or of one that `group_rows` has made.

    mask [B, T] is 1 on the tokens of the texts, the new ones included; `padded` says whether there may be a 0 in it, so
    that the host need not wait for the device to see.
    """
    network = below_the_head(model)
    prepared, extra = mask[:, None, None].bool() if masks_itself(model) else mask, {}
    if groups := getattr(cache, "groups", None):
        prepared, padded, extra = mask.new_zeros(1, 1, 1, 1), True, {"layout": groups}  # a mask that needs no making
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
    """Hidden states [B, T, H] of whole texts, as in training."""
    return backbone(model, input_ids, attention_mask, use_cache=False).last_hidden_state


def lm_logits(model, hidden):
    """Logits [..., V] of hidden states [..., H], without those of rows that are no tokens where `settle_logits` cut."""
    return known_logits(model, all_logits(model, hidden))


def known_logits(model, logits):
    """Those [..., V] of logits [..., rows] that are of tokens, as `settle_logits` has found."""
    known = getattr(unwrapped(model), "known_tokens", None)
    return logits if known is None else logits[..., :known]


def all_logits(model, hidden):
    """Logits [..., rows] of hidden states [..., H], in the precision of the output layer's weights."""
    model = unwrapped(model)
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    with torch.autocast(hidden.device.type, enabled=False):
        logits = head(hidden.to(head.weight.dtype))
    logits = logits * (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    logits = logits * (getattr(config, "lm_head_multiplier", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    return torch.tanh(logits / cap) * cap if cap else logits


def settle_logits(config: BaseConfig, models: Models) -> None:
    """Cut the rows beyond the tokenizer from the vocabulary of policy and reference.

    Raises UserError if its logits are not its output layer on its backbone's states, as assumed here.
    """
    ids = torch.tensor([[models.pad_id, 0, 1, 2]], device=models.device)
    name = type(unwrapped(models.policy)).__name__
    try:
        with torch.no_grad(), autocast(config, models.device):
            expected = models.policy(input_ids=ids).logits.float()
            got = all_logits(models.policy, plain_states(models.policy, ids, torch.ones_like(ids))).float()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # Mamba with 4-bit weights, for one
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"got {name} with these settings, which does not read four tokens: {error}; expected a plain decoder; "
            "try weights of 16 bits, or another architecture"
        ) from error
    need(
        torch.allclose(got, expected, rtol=2e-2, atol=2e-2 * expected.std().item()),
        f"got {name}, whose logits are not output layer x hidden state; expected a "
        "plain decoder (logit scale and soft-capping are known); try another architecture, or adapt all_logits()",
    )
    known = token_count(models.tokenizer, models.eos_ids)
    for network in filter(None, (models.policy, models.reference)):
        unwrapped(network).known_tokens = known if known < got.shape[-1] else None


# ----------------------------------------------------------------------------- folding (src/parts/networks/folding.py)

SHARE = 6  # of a GPU, the part that a copy of the weights may take: 13 GiB of 80, so those of 7B


def copy_fits(size: float, device) -> bool:
    """Whether weights of so many bytes are copied; not on a CPU, where arithmetic takes the time.

    The GPU's size decides, not what is free: a resumed run does alike.
    """
    device = torch.device(device)
    return device.type == "cuda" and size <= torch.cuda.mem_get_info(device)[1] / SHARE


def foldable_layers(policy, device) -> list:
    """The linear layers to whose weights LoRA's delta can be added; none where copies of these do not fit."""
    if device.type != "cuda" or not hasattr(policy, "peft_config"):
        return []
    from peft.tuners.lora import Linear, LoraLayer

    adapted = [m for m in policy.modules() if isinstance(m, LoraLayer) and "default" in m.lora_A]
    layers = [m for m in adapted if type(m) is Linear and "default" not in m.lora_variant]
    shared = policy.get_base_model().get_input_embeddings().weight  # by a tied output layer
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
    """While it lasts, each layer runs W + B A alone, rounded to the dtype of W; then W is the same tensor as before."""
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


# --------------------------------------------------------------------------------- norms (src/parts/networks/norms.py)

EXACT = 1e-6  # relative distance from the norm of transformers in float32 that the order of sums explains


def plain_norm(module, x, eps: float):
    """x [..., H] / RMS(x) * weight [H]; narrower numbers are rounded before the weight, as by transformers."""
    if x.dtype == module.weight.dtype == torch.float32:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], module.weight, eps)
    return module.weight * torch.nn.functional.rms_norm(x, x.shape[-1:], None, eps).to(x.dtype)


def shifted_norm(module, x, eps: float):
    """x [..., H] / RMS(x) * (1 + weight [H]) in float32, as Gemma has it."""
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], 1 + module.weight.float(), eps).type_as(x)


def norm_like(module) -> Callable | None:
    """Which of the two a module is on a few numbers, None for neither."""
    eps, weight = getattr(module, "variance_epsilon", getattr(module, "eps", None)), getattr(module, "weight", None)
    alone = len(inspect.signature(type(module).forward).parameters) == 2  # others have a gate
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
    """(module, what to run in its place) of a network's RMS norms; none on a CPU, which has no such kernel."""
    modules = [module for module in policy.modules() if type(module).__name__.endswith("RMSNorm")]
    pairs = [(module, norm_like(module)) for module in modules if device.type == "cuda"]
    for name in sorted({type(module).__name__ for module, norm in pairs if not norm}):
        say(f"note: {name} runs in transformers' form while sampling: torch has no kernel for this norm")
    return [(module, norm) for module, norm in pairs if norm]


@contextlib.contextmanager
def replaced(norms: list[tuple]) -> Iterator[None]:
    """While it lasts, modules run what stands beside them."""
    try:
        for module, norm in norms:
            module.forward = norm
        yield
    finally:
        for module, _ in norms:
            vars(module).pop("forward", None)


# --------------------------------------------------------------------- cache probe (src/parts/networks/cache_probe.py)


@dataclass(frozen=True)
class Decoding:
    """What a model's cache can do, as measured before anything is sampled."""

    pads: bool  # prompts of several lengths in one batch, padded on the left
    leaving: bool  # rows that are finished leave the batch
    groups: bool = False  # a prompt is held once for all rows that begin with it
    plain: bool = False  # a text can be gone on with by several tokens, and masks and positions say all of its columns


def probe_texts(vocabulary: int, padded: bool = True) -> list[list[int]]:
    """Two texts of token ids, of 12 and 6 where they are padded, else of 12."""
    first, second = ([(step * i + step) % vocabulary for i in range(12)] for step in (37, 53))
    return [first, second[:6] if padded else second]


def relative_gap(states, expected) -> float:
    """Mean over [..., H] states of how far each is from the expected one, relative to that one's length.

    A network that gives NaN for the whole text says nothing of its cache: it is refused where it samples.
    """
    gaps = (states.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1).clamp(min=1e-12)
    return float(gaps.nan_to_num(nan=math.inf).where(~expected.isnan().any(dim=-1), 0.0).mean())


def decoding_gap(read, step, decoding: Decoding, vocabulary: int, pad_id: int, device) -> float:
    """How far states of tokens fed one at a time to `step(ids, mask, cache)` are from those of the whole texts."""
    texts, new, gaps = probe_texts(vocabulary, decoding.pads), 4, []
    whole = [torch.tensor([text], device=device) for text in texts]
    expected = [read(ids, torch.ones_like(ids))[0, -new:] for ids in whole]  # [new, H] each
    ids, mask = left_pad([text[: 1 - new] for text in texts], pad_id, device)
    rows, cache = [0, 1], None
    for t in range(new):
        states, cache = step(ids, mask, cache)
        gaps += [relative_gap(states[i, -1], expected[row][t]) for i, row in enumerate(rows)]
        if decoding.leaving and t == 0:
            rows, mask = [1], mask[1:]
            select_rows(cache, torch.tensor(rows, device=device))
        ids = torch.tensor([[texts[row][t + 1 - new]] for row in rows], device=device)
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    return sum(gaps) / len(gaps)


def holds(gap, limit: float) -> bool:
    """Whether a gap that is measured by calling `gap` is below the limit; False where the cache lacks an operation."""
    try:
        return gap() < limit
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):  # which says nothing of the cache
            raise
        return False


def turns_gap(read, step, one, config, pad_id: int, device) -> float:
    """How far texts that are read in turns, with pads between these, are from the whole texts; inf for other caches.

    Args:
        read: `(ids, mask) -> states` of whole texts.
        step: `(ids, mask, cache) -> (states, cache)` of more tokens of each.
        one: `(token [B], mask, cache, padded) -> states [B, H]` of one more.
        config: of the model's text part.
    """
    texts, gaps = probe_texts(config.vocab_size), []
    whole = [torch.tensor([text], device=device) for text in texts]
    expected = [read(ids, torch.ones_like(ids))[0] for ids in whole]

    def compare(states, order, places) -> None:
        gaps.extend(relative_gap(states[i], expected[row][places[row] - 1]) for i, row in enumerate(order))

    ids, mask = left_pad([texts[0][:5], texts[1][:2]], pad_id, device)
    cache = step(ids, mask, None)[1]
    if not has_plain_layers(cache, config):
        return math.inf
    token = torch.tensor([texts[0][5], texts[1][2]], device=device)
    grown = torch.cat([mask, torch.ones_like(token[:, None])], dim=1)
    compare(one(token, grown, cache, True), (0, 1), (6, 3))
    rows, said = torch.arange(2, device=device), torch.tensor([2, 2], device=device)
    kept = KeptTexts({0: texts[0][:6], 1: texts[1][:3]})
    for leaving in (rows[1:], rows[:1]):
        kept.take([0, 1], mask, cache, leaving, rows, said)
    order, cache, mask = kept.cache_of([0, 1])
    new, new_mask = left_pad([(texts[0][6:9], texts[1][3:4])[row] for row in order], pad_id, device)
    mask = torch.cat([mask, new_mask], dim=1)
    compare(step(new, mask, cache)[0][:, -1], order, (9, 4))
    token = torch.tensor([(texts[0][9], texts[1][4])[row] for row in order], device=device)
    mask = torch.cat([mask, torch.ones_like(token[:, None])], dim=1)
    compare(one(token, mask, cache, True), order, (10, 5))
    cache = step(whole[0][:, :5], torch.ones_like(whole[0][:, :5]), None)[1]
    alone = one(whole[0][:, 5], torch.ones_like(whole[0][:, :6]), cache, False)
    compare(alone, (0,), (6,))
    return sum(gaps) / len(gaps)


def groups_gap(config: BaseConfig, models: Models, vocabulary: int) -> float:
    """How far the worst state is off where prompts are held once for their rows, one of which leaves."""
    policy, device, gaps = models.policy, models.device, []
    prompts, which = probe_texts(vocabulary), torch.tensor([1, 0, 1, 1], device=device)
    new = torch.arange(1, 9, device=device).view(2, 4) % vocabulary
    texts = [torch.tensor([prompts[n] + new[:, row].tolist()], device=device) for row, n in enumerate(which)]
    ids, mask = left_pad(prompts, models.pad_id, device)
    with autocast(config, device):
        expected = [plain_states(policy, ids, torch.ones_like(ids))[0, -2:] for ids in texts]  # [2, H] each
        cache = group_rows(cached_states(policy, ids, mask, None)[1], mask, which)
    mask, rows = mask[which], torch.arange(4, device=device)
    for t in range(2):
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        with autocast(config, device):
            states = next_states(policy, new[t, rows], mask, cache, padded=True)
        gaps += [relative_gap(state, expected[row][t]) for state, row in zip(states, rows, strict=True)]
        if t == 0:
            rows, mask = rows[1:], mask[1:]
            select_rows(cache, rows)
    return max(gaps)


def gap_limits(config: BaseConfig, device) -> tuple[float, float]:
    """The relative distance of states that rounding explains: of the mean, and of the worst in any order of sums.

    Faults of caches and pads give a mean of 0.3 and more. As for the worst: old and new log-probs are computed the
    same way, so the update only needs each token to see what it should. Two bf16 passes of Gemma 3 270M are
    0.047 apart, and each is 0.03 to 0.04 from float32; of Qwen2.5 0.5B 0.013. A pad that is seen, a token that is not,
    or a position off by one moves the worst state by 0.26 and more.
    """
    return (0.01, 1e-4) if compute_dtype(config, device).itemsize > 2 else (0.2, 0.12)


@contextlib.contextmanager
def first_layers(config: BaseConfig, network, device):
    """Run a float32 network with its first layers only, up to the last one of a new kind, and restore it.

    They show what a cache can do, in a twelfth of the time for Qwen2.5 0.5B. In bf16 each layer adds its rounding, so
    all of them run; so do those of a network whose layers read the keys of others.
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
    """What the policy's cache can do; UserError where sampling would not follow the model that is trained."""
    policy, pad_id, device = models.policy, models.pad_id, models.device
    text, name = unwrapped(policy).config.get_text_config(), type(unwrapped(policy)).__name__
    size = unwrapped(policy).get_input_embeddings().weight.shape[0]
    read, step, one = (functools.partial(states, policy) for states in (plain_states, cached_states, next_states))
    (limit, worst), able = gap_limits(config, device), False
    tried = (Decoding(pads, leaving) for pads in (True, False) for leaving in (True, False))  # the most first
    with torch.no_grad(), autocast(config, device), first_layers(config, policy, device):
        gap = functools.partial(decoding_gap, read, step, vocabulary=size, pad_id=pad_id, device=device)
        measured = next((able_to for able_to in tried if holds(functools.partial(gap, decoding=able_to), limit)), None)
        if measured and measured.pads and measured.leaving:
            plain = holds(lambda: turns_gap(read, step, one, text, pad_id, device), limit)
            able = plain and config.reuse_prefill and length_that_shares(policy) == math.inf
            groups = able and holds(lambda: groups_gap(config, models, size), worst)
            measured = replace(measured, plain=plain, groups=groups)
    need(
        measured,
        f"got {name}, whose states of a whole text and of one token at a time with a cache differ; expected the same "
        "ones; try vLLM (--rollout_engine vllm, in evaluation.py --engine vllm), or another architecture",
    )
    notes = (
        (measured.pads, "the cache of {} cannot handle padding; only prompts of equal length are sampled together"),
        (measured.leaving, "the cache of {} cannot drop rows; a batch is sampled until its last completion ends"),
        (measured.plain, "{} reads the whole conversation again at each turn, and builds masks for each token"),
        (
            measured.groups or not able,
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


def inverse_cdf(log_probs, uniform):
    """Draw one index per row of log_probs [B, V] with uniform [B] in [0, 1)."""
    cdf = log_probs.to(widest_float(log_probs.device)).exp().cumsum(-1)
    margin = max(1e-12, 4 * torch.finfo(cdf.dtype).eps)
    point = uniform[:, None].to(cdf) * cdf[:, -1:] * (1 - margin)  # below the total in spite of rounding
    return torch.searchsorted(cdf, point, right=True).squeeze(-1).clamp(max=cdf.shape[1] - 1)  # a row of NaN


def steps_between_looks(device) -> int:
    """How many tokens are sampled between looks at which rows have ended: for each one a device is waited for."""
    return 1 if device.type == "cpu" else 8


class Ended:
    """Tells of completions that have ended, each once; `numbers` are those of the batch's rows."""

    def __init__(self, tell: Callable, numbers: list[int]):
        self.tell, self.numbers, self.reported = tell, numbers, set()

    def look(self, rows, tokens, lengths) -> None:
        """Tell of those among rows [n] of tokens [B, T] that are new; of none, too."""
        new = [row for row in rows.tolist() if row not in self.reported]
        self.reported.update(new)
        self.tell([(self.numbers[row], tokens[row, : lengths[row]].tolist()) for row in new])


class HFEngine:
    """Samples with the policy itself, batched, with a cache; rows that are finished leave the batch if it lets them."""

    def __init__(self, config: BaseConfig, models: Models):
        self.config, self.models = config, models
        self.decoding = decoding_of_policy(config, models)
        self.layers = foldable_layers(models.policy, models.device)
        self.norms = one_kernel_norms(models.policy, models.device)
        self.graphs = config.decode_graphs and models.device.type == "cuda" and self.can_record()
        self.noted = False  # that turns are not gone on with
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
        """While it lasts, layers are as sampling runs them: adapters folded, weights cast once, norms in one kernel."""
        with contextlib.ExitStack() as changed, torch.no_grad(), autocast(self.config, self.models.device):
            if self.layers:
                changed.enter_context(folded(self.layers))
            if self.norms:
                changed.enter_context(replaced(self.norms))
            yield

    def generate(self, prompts: list[list[int]], noise, tell=None) -> list[tuple[list[int], list[float]]]:
        """Sample one completion per prompt.

        Args:
            prompts: token ids, any lengths.
            noise: uniform draws [len(prompts), max_new_tokens] in [0, 1), so that a row's completion does not depend on
                the rest of its batch; None decodes greedily.
            tell: called now and then with [(number of a prompt, its completion's ids), …] that have ended since.

        Returns:
            (token ids with the end token if there is one, their log-probs) per prompt.
        """
        outputs = [None] * len(prompts)
        with self.ready():
            for rows in self.batches(list(map(len, prompts))):
                batch, draws = [prompts[i] for i in rows], None if noise is None else noise[rows]
                ended = tell and Ended(tell, rows)
                texts = self.read(batch, self.decoding.groups and not self.graphs)
                sampled = self.sample(*texts, draws, ended=ended)
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
        if self.config.reuse_prefill and self.decoding.leaving:
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
        rows = max(1, DRAWN_AT_ONCE // log_probs.shape[1])
        pieces = zip(log_probs.split(rows), uniform.split(rows), strict=True)
        return torch.cat([inverse_cdf(*piece) for piece in pieces])

    def ends(self, tokens, rows, t: int):
        """Which rows [n] of tokens [B, T] end with the token at t."""
        return torch.isin(tokens[rows, t], self.end_ids)

    def sample(self, states, mask, cache, noise, leave=None, ended=None) -> list[tuple[list[int], list[float]]]:
        """Completions of the texts that a cache holds, as `generate` returns them; states [B, H] are of their ends.

        `leave` is called as KeptTexts.take is, before rows leave the batch and at the end; `ended` is told of rows.
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
                logits = lm_logits(models.policy, states).float()
                dist = torch.log_softmax(logits / self.config.temperature, dim=-1)  # [rows, V]
                token = self.draw(dist, None if noise is None else noise[rows, t])  # [rows]
                tokens[rows, t], logprobs[rows, t] = token, dist.gather(-1, token[:, None]).squeeze(-1)
                ending = running & self.ends(tokens, rows, t)
                lengths[rows] = torch.where(ending, t + 1, lengths[rows])
                running &= ~ending
                alive = int(running.sum()) if t % every == every - 1 else len(rows)
                if ended and t % every == every - 1:
                    ended.look(rows[~running], tokens, lengths)
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
        if ended:
            ended.look(torch.arange(n), tokens, lengths)
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
            if not engine.noted:
                say("note: each batch of a turn reads its conversations again; try a higher --rollout_batch_size")
            engine.noted = True
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
    (rank, size), samples, failure = world(), [], None
    shares = dealt([1] * len(rows), [str(row["prompt"]) for row in rows], size, slack=0)  # prompts are read once
    local = shares[rank]
    try:
        with leaving_early():
            samples = make([rows[i] for i in local], None if noise is None else noise[local])
    except (Exception, StopRequested) as error:  # the other processes wait for this one: tell them
        kind, message = MemoryError if is_out_of_memory(error) else UserError, f"{type(error).__name__}: {error}"
        whole = size == 1 or isinstance(error, UserError | StopRequested)
        failure = error if whole else kind(f"process {rank}: {message}")
    return gather_rows(samples, failure, shares)


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
    widths = ("moe_intermediate_size",) * bool(experts) + ("n_inner", "ffn_dim", "intermediate_size")
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
    """Create the output folder, once everybody has looked for another run's files in it."""
    gather_rows([None])
    try:
        Path(config.output_dir).mkdir(parents=True, exist_ok=True)
        if not os.access(config.output_dir, os.W_OK):
            raise PermissionError("it is read-only")
    except OSError as error:
        got = f"got output_dir {config.output_dir!r} ({error})"
        raise UserError(f"{got}; expected a folder to write to; try another --output_dir") from None


def versions() -> dict:
    """Versions of what a run's numbers depend on."""
    from importlib.metadata import PackageNotFoundError, version

    numbers = {"python": sys.version.split()[0]}
    for name in ("torch", "transformers", "tokenizers", "numpy", "peft", "trl", "vllm", "math-verify"):
        with contextlib.suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return numbers


# ----------------------------------------------------------------- paired tests (src/parts/evaluating/paired_tests.py)

Z95, Z_POWER = 1.959963984540054, 0.8416212335729143  # normal quantiles of 97.5 % and of 80 % power


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927), also for 0 and n successes."""
    z, p = Z95, successes / n
    shrink = 1 + z * z / n
    middle = (p + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def mcnemar_exact(better: int, worse: int) -> float:
    """Two-sided exact p of as uneven a split of the pairs that differ (McNemar 1947), binomial with 1/2.

    >>> mcnemar_exact(9, 0)
    0.00390625
    """
    n, tail = better + worse, sum(math.comb(better + worse, i) for i in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / 2**n)


def paired_proportion_interval(better: int, worse: int, n: int) -> tuple[float, float]:
    """95 % interval of the difference of paired proportions, one row added to each side (Bonett and Price 2012)."""
    up, down = (better + 1) / (n + 2), (worse + 1) / (n + 2)
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return max(-1.0, up - down - half), min(1.0, up - down + half)


def rows_needed(difference: float, stderr: float, n: int) -> int | None:
    """Rows that show such a difference at p < 0.05 in 4 runs of 5, given its standard error over n rows."""
    return math.ceil(n * ((Z95 + Z_POWER) * stderr / difference) ** 2) if difference else None


def resampled_ratios(columns: list, samples: int, seed: int):
    """Bootstrap sums of columns [n] as [samples, columns], all columns by the same rows.

    A ratio is left out where its denominator is 0: of the rows that were drawn, none had anything to divide by.
    """
    import numpy as np

    table, rng = np.asarray(columns, dtype=float).T, np.random.default_rng(seed)  # [n, columns]
    n, step, sums = len(table), max(1, 2**22 // max(1, len(table))), []
    for start in range(0, samples, step):
        picked = rng.integers(0, n, size=(min(step, samples - start), n))
        with np.errstate(over="ignore"):  # as in `Values.of`
            sums.append(table[picked].sum(axis=1))
    return np.concatenate(sums)


@dataclass
class Values:
    """One metric over the rows: the mean of `top`, or f(sum of top / sum of bottom); None is not applicable."""

    top: list
    bottom: list | None = None
    exp: bool = False  # f is exp, as of perplexities
    higher_is_better: bool | None = True

    def of(self, ratio):
        """f of a number or array."""
        import numpy as np

        with np.errstate(over="ignore"):  # inf is handled where it is reported
            return np.exp(ratio) if self.exp else ratio

    def columns(self, rows) -> list[list[float]]:
        """[top, bottom] of some rows."""
        return [[self.top[i] for i in rows], [1.0 if self.bottom is None else self.bottom[i] for i in rows]]

    def is_proportion(self) -> bool:
        """Whether all values are 0 or 1. Counts, such as the number of turns, are never proportions."""
        counts = self.bottom is not None or self.exp or self.higher_is_better is None
        return not counts and all(x in (0, 1) for x in self.top if x is not None)

    def mean(self, top: list[float], bottom: list[float]) -> float:
        """f of these columns' sums; infinite if they are too large for a number."""
        try:
            return float(self.of(math.fsum(top) / math.fsum(bottom)))
        except OverflowError:
            return math.inf


def summarize(values: Values, samples: int, seed: int) -> dict:
    """Value, standard error and 95 % interval of a metric, and how they were computed."""
    import numpy as np

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
        sums = resampled_ratios([top, bottom], samples, seed)
        sums = sums[sums[:, 1] != 0]
        with np.errstate(over="ignore", invalid="ignore"):
            draws = values.of(sums[:, 0] / sums[:, 1])
            ends = [float(x) for x in np.quantile(draws, [0.025, 0.975])]
            result |= {"ci95": ends, "interval": "bootstrap", "stderr": float(draws.std(ddof=1))}
    if n > 1 and values.bottom is None and not values.exp:
        with np.errstate(over="ignore"):
            result["stderr"] = float(np.std(top, ddof=1) / math.sqrt(n))
    if not all(map(math.isfinite, [result["stderr"] or 0.0, *(result["ci95"] or [])])):
        result |= {"ci95": None, "stderr": None, "interval": "too large for a number"}
    return result


def compare_values(before: Values, after: Values, samples: int, seed: int) -> dict | None:
    """Paired test of two runs' values on the same rows, in the same order.

    None without a row that both have, or where the figures are too large for numbers.
    """
    rows = [i for i, pair in enumerate(zip(before.top, after.top, strict=True)) if None not in pair]
    n = len(rows)
    if not n:
        return None
    (a, a_base), (b, b_base) = before.columns(rows), after.columns(rows)
    if not sum(a_base) or not sum(b_base):  # a share of nothing
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
        import numpy as np

        sums = resampled_ratios([a, a_base, b, b_base], samples, seed)
        sums = sums[(sums[:, 1] != 0) & (sums[:, 3] != 0)]
        with np.errstate(over="ignore", invalid="ignore"):
            sides = before.of(sums[:, 0] / sums[:, 1]), after.of(sums[:, 2] / sums[:, 3])
            draws = sides[1] - sides[0]
            stderr = float(draws.std(ddof=1))
        if not math.isfinite(stderr):
            return None
        for name, drawn in (("ci95", draws), ("before_ci95", sides[0]), ("after_ci95", sides[1])):
            result[name] = [float(x) for x in np.quantile(drawn, [0.025, 0.975])]
        # the draws around their own centre are what chance does where there is no difference
        far = (abs(draws - result["difference"]) >= abs(result["difference"]) * (1 - 1e-12)).sum()
        result |= {"test": "paired bootstrap", "p": float((far + 1) / (len(draws) + 1))}
    else:
        return result | {"test": "none", "p": None, "ci95": None, "rows_needed": None}
    # a split without noise, such as 9 better and none worse of 9, still needs the 6 rows that make p < 0.05
    needed = rows_needed(result["difference"], stderr, n)
    return result | {"rows_needed": needed and max(needed, 6)}


def verdict_of(name: str, result: dict, higher_is_better: bool | None) -> str:
    """The comparison in words."""
    change = f"{name}: {result['before']:.4g} -> {result['after']:.4g}, difference {result['difference']:+.4g}"
    if result["p"] is None:
        return f"{change}; one row shows nothing"
    low, high = result["ci95"]
    counts = f", {result['better']} rows better, {result['worse']} worse" if "better" in result else ""
    change += f", 95 % interval [{low:+.4g}, {high:+.4g}], p = {result['p']:.2g} ({result['test']}, "
    change += f"{result['rows']} rows{counts}). "
    if result["p"] < 0.05:
        up = result["difference"] > 0
        return change + {None: "A real change.", up: "A real gain."}.get(higher_is_better, "A real loss.")
    if not result["rows_needed"]:
        return change + "No difference at all."
    return change + f"Within the noise; to see a difference of this size needs about {result['rows_needed']} rows."


# ----------------------------------------------------- evaluation results (src/parts/evaluating/evaluation_results.py)


def unique_keys(rows: list) -> list[str]:
    """A short hash of each row, so that two runs find their common rows; repeats are numbered."""
    seen, keys = {}, []
    for text in (json.dumps(row, sort_keys=True, default=str) for row in rows):
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        seen[key] = seen.get(key, 0) + 1
        keys.append(key if seen[key] == 1 else f"{key}.{seen[key]}")
    return keys


def read_report(path: str) -> dict:
    """Read a results.json."""
    file = Path(path) / "results.json" if Path(path).is_dir() else Path(path)
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        need(report["tasks"] is not None, f"got {path!r} without tasks; expected a results.json of a run")
        return report
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"got {path!r} ({type(error).__name__}: {error}); expected a results.json of a run") from None


def compare_reports(before: dict, after: dict, samples: int, seed: int) -> dict:
    """Paired tests of all metrics that two runs share, on the rows that both have.

    Args:
        samples: of the bootstrap.
    """
    results, common = {}, [name for name in before["tasks"] if name in after["tasks"]]
    need(common, f"got runs of {list(before['tasks'])} and of {list(after['tasks'])}; expected a task that both have")
    for task in common:
        a, b = before["tasks"][task], after["tasks"][task]
        place = {key: i for i, key in enumerate(b["keys"])}
        pairs = [(i, place[key]) for i, key in enumerate(a["keys"]) if key in place]
        need(pairs, f"got two runs of {task} without a common row; expected the same data")
        alone = len(a["keys"]) + len(b["keys"]) - 2 * len(pairs)
        if alone:
            say(f"warning: {task}: {alone} rows are in one of the runs only and left out")
        for name in [name for name in a["values"] if name in b["values"]]:
            one, two = (pick_values(run["values"][name], [p[side] for p in pairs]) for side, run in enumerate((a, b)))
            found = compare_values(one, two, samples, seed)
            if found:
                words = verdict_of(f"{task} {name}", found, one.higher_is_better)
                results.setdefault(task, {})[name] = {**found, "verdict": words}
    return results


def pick_values(values: dict, rows: list[int]) -> Values:
    """Some rows of the values in a results.json."""
    picked = {name: values[name] and [values[name][i] for i in rows] for name in ("top", "bottom")}
    return Values(**{**values, **picked})


# ---------------------------------------------------------------------- settings (src/programs/evaluation/settings.py)


@dataclass
class Config(BaseConfig):
    """All settings and their defaults; every field is a flag and a key of --config."""

    # what
    task: list[str] = setting([], "NAME[:option=value,…], repeatable; see above", section="what is evaluated")
    model: list[str] = setting([], f"folder, adapter folder or hub id; two are compared (default: {EMBEDDED_MODEL})")
    data: str = setting("", "rows to evaluate on: file, folder, or hub id[:config][@split]")
    limit: int = setting(0, "use only the first rows (0: all)")
    compare: list[str] = setting([], "BEFORE AFTER: compare two results.json without running a model", several=True)
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
    environment: str = setting(
        "",
        "FILE.py:Class of a multi-turn environment: its methods are tools, or it replies; also a dict {name: class}",
        section="conversations",
    )
    max_turns: int = setting(8, "answers in a conversation with an environment", positive=True)
    max_prompt_tokens: int = setting(512, "longer prompts of conversations are left out, and counted", positive=True)
    max_conversation_tokens: int = setting(
        0, "tokens of a whole conversation (0: max_prompt_tokens + max_turns x max_new_tokens)"
    )
    tool_timeout: float = setting(30.0, "seconds for an answer's tool calls together, or for a reply", positive=True)
    tool_characters: int = setting(8000, "length at which tool results are cut, in characters", positive=True)
    tool_format: str = setting(
        "",
        "form of tool calls: hermes, qwen_xml, mistral, deepseek, pythonic, llama3_json, or template for the "
        "tokenizer's response_template (default: what the chat template shows)",
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
        32768,
        "tokens per batch, with completions; halved when memory runs out",
        positive=True,
        auto="what memory holds, at most 32768",
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
    removed: ClassVar = {
        "fewshot_as_turns": "to leave it out: with a chat template, worked examples are turns",
        **dict.fromkeys(("out_json", "fields", "metric"), "results.json or comparison.json of --output_dir, by task"),
    }

    def __post_init__(self):
        if self.environment and "environment" not in [text.partition(":")[0] for text in self.task]:
            self.task = [*self.task, "environment"]

    @property
    def conversation_tokens(self) -> int:
        return self.max_conversation_tokens or self.max_prompt_tokens + self.max_turns * self.max_new_tokens

    @property
    def template_file(self) -> str:
        """The file of --chat_template FILE; "" for auto, on and off."""
        return "" if self.chat_template in ("auto", "on", "off") else self.chat_template


def check_choices(config: Config) -> None:
    """Raise UserError for settings that cannot work."""
    c, url, served = config, config.base_url, config.engine == "vllm" or config.base_url
    check_numbers(c)
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
        f"n {c.n} with temperature 0, which makes all alike; expected sampling; try --temperature 0.8": (
            c.n > 1 and not c.temperature and not c.completion_column
        ),
        f"{len(c.model)} models; expected one, or two to compare": len(c.model) > 2,
        f"--compare with {len(c.compare)} files; expected two results.json; try --compare BEFORE AFTER": (
            len(c.compare) not in (0, 2)
        ),
        "an empty --stop; expected text": not all(c.stop),
        "--base_url; expected one --model, the server's name": url and len(c.model) != 1,
        f"base_url {url!r}; expected http:// or https:// before it; try http://HOST:PORT/v1": (
            url and not url.startswith(("http://", "https://"))
        ),
        f"system_prompt {text!r}, which is not a file; expected text, or a file with it; try the path from here": (
            text and is_path and not path.is_file()
        ),
        "--attn_implementation without --engine hf, which alone reads it; try to leave it out": (
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
        "completion_column": "expected a model that plays; try --model",
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
    """Return the settings of a command line: defaults, then --config, then flags; a later one wins."""
    return parse_settings(argv, Config, __doc__)


# ------------------------------------------------------------------------------ rows (src/programs/evaluation/rows.py)

PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "query", "text", "input")


def sibling(name: str):
    """Load NAME.py, which must lie beside this file or in the bundle's scripts, when something first needs it."""
    module_name = f"evaluation_{name}"
    if module_name not in sys.modules:
        here = Path(__file__).resolve().parent
        path = next((p for f in (here, BUNDLE / "scripts") if (p := f / f"{name}.py").is_file()), None)
        need(path, f"got no {name}.py beside {Path(__file__).name}; expected it; try copying scripts/{name}.py there")
        spec = importlib.util.spec_from_file_location(module_name, path)
        sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[module_name]


def rows_of(source: str, flag: str = "--data") -> list[dict]:
    """Rows of a file, of a hub id, or of any other form by data_loader.py; never none."""
    need(source, f"got no {flag}; expected a file or hub id; try {flag} assets/data/arithmetic_eval.jsonl")
    plain = Path(source).suffix.lower() in (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
    if plain or (is_hub_id(source) and Path(source).suffix.lower() not in (".gz", ".zst", ".tsv", ".txt")):
        rows = read_rows(source)
    else:
        loader = sibling("data_loader")
        try:
            rows = list(loader.load_rows(source).rows)
        except loader.UserError as error:
            raise UserError(str(error)) from None
    need(rows, f"got data {source!r} without rows; expected at least one")
    return rows


def first_of(row: dict, names) -> object:
    """The first of these columns that the row has; None without."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def task_rows(config, task) -> tuple[list[dict], list[dict]]:
    """(rows to evaluate, rows for worked examples), checked."""
    rows, shots, first = rows_of(task.source), [], 1
    if config.fewshot and task.asks:
        same_rows = not config.fewshot_data
        pool = rows if same_rows else rows_of(config.fewshot_data, "--fewshot_data")
        enough = len(pool) >= config.fewshot + same_rows
        need(enough, f"got {len(pool)} rows; expected more than --fewshot {config.fewshot}")
        shots, count = pool[: config.fewshot], len(rows)
        first += config.fewshot * same_rows
        rows = rows[config.fewshot :] if same_rows else [row for row in rows if row not in shots]
        if len(rows) < count:
            say(f"{task.label}: {count - len(rows)} rows serve as worked examples and are not evaluated")
        need(rows, "got no rows besides the worked examples; expected others; try another --fewshot_data")
    limit = task.settings["limit"] or config.limit
    rows = rows[:limit] if limit else rows
    for number, row in enumerate(rows, first):
        try:
            task.check_row(row)
            if task.asks:
                task.question(row)
            if config.completion_column:
                given_texts(config, row)
        except UserError as error:
            raise type(error)(f"{task.source}, row {number}: {error}") from None
    try:
        task.decide(rows, first)
    except UserError as error:
        raise UserError(f"{task.source}, {error}") from None
    if task.asks:
        asked = [(task.unused(row), task.question(row)) for row in rows]
        read = [
            {name: row[name] for name in row if name not in unused}
            for row, (unused, _) in zip(rows, asked, strict=True)
        ]
        warn_odd_answers(task.source, read, [prompt for _, prompt in asked])
        warn_unread(task.source, asked)
    return rows, shots


def given_texts(config, row: dict) -> list[str]:
    """The completions in --completion_column: a text or a list of them."""
    given = row.get(config.completion_column)
    texts = [given] if isinstance(given, str) else given
    good = isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
    need(good, f"got {str(given)[:60]!r} in column {config.completion_column!r}; expected text or a list of texts")
    return texts


def training_settings(source: str) -> Iterator[tuple[Path, dict]]:
    """(folder, settings) of the run that wrote a model, and of those that wrote the models before it."""
    seen, path = set(), Path(source).resolve()
    while path.is_dir() and path not in seen:
        seen.add(path)
        settings = {}
        for folder in (path, *path.parents[:3]):  # the last: checkpoints/checkpoint-50
            for name in ("config.json", "settings.json"):
                try:
                    saved = json.loads((folder / name).read_text(encoding="utf-8"))
                    saved = saved.get("settings", saved)
                except (OSError, ValueError, AttributeError):
                    continue
                if not settings and isinstance(saved, dict) and {"data", "data.train_files"} & saved.keys():
                    settings = saved  # the config.json of a model has no data
                    yield folder, saved
        if not settings.get("model"):
            return
        path = Path(str(settings["model"])).resolve()


def trained_tasks(source: str, with_columns: bool) -> set[tuple]:
    """What the prompts ask that a model was trained on; none for a model that no run's settings lie beside."""
    tasks = set()
    for folder, settings in training_settings(source):
        data = settings.get("data") or settings.get("data.train_files")
        for file in data if isinstance(data, list) else [data]:
            try:
                rows = read_rows(str(file))
            except UserError as error:
                say(f"note: cannot tell whether {source} was trained on these rows: {folder} names {file}: {error}")
                continue
            columns = (settings.get("prompt_column"), *PROMPT_COLUMNS)
            asking = [task for row in rows if (task := asked(row, columns, with_columns))]
            alike = bool(settings.get("environment")) == with_columns  # else the run told its tasks apart otherwise
            tasks.update({*asking} - drawn_tasks(asking, (alike and settings.get("hold_out")) or 0))
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
    trained, counts, shares = trained_tasks(source, played), {}, []
    for task, rows in tasks:
        count = sum(asked(row, PROMPT_COLUMNS, played) in trained for row in rows)
        if count:
            counts[task.label] = count
            shares.append(f"{task.label}: {count} of {len(rows)} rows")
    if shares:
        say(f"warning: {source} was trained on rows of this evaluation ({', '.join(shares)}); the figures are inflated")
    return counts


def warn_of_trained(reports: list[dict]) -> None:
    """Say where results that are compared have rows that a model was trained on."""
    counts = [
        f"{report['model']['name']}, {label}: {result['trained_rows']} of {result['rows']}"
        for report in reports
        for label, result in report["tasks"].items()
        if result.get("trained_rows")
    ]
    if counts:
        say(f"warning: rows of this comparison were trained on ({'; '.join(counts)}); a gain is inflated")


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
        prompt = first_of(row, PROMPT_COLUMNS)
        need(prompt is not None, f"got columns {', '.join(row)}; expected one of {', '.join(PROMPT_COLUMNS)}")
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
        need(value is not None, f"task {self.name} got columns {', '.join(row)}; expected one of {', '.join(names)}")
        return value

    def unused(self, row: dict) -> dict:
        """The columns of a row that the task does not use beside its question."""
        return row

    def check_row(self, row: dict) -> None:
        """Raise UserError unless the row has what the scoring needs."""
        if self.needs:
            self.require(row, self.needs)

    def decide(self, rows: list[dict], first: int) -> None:
        """Settle what holds for all rows, whose first has this number; UserError where it cannot be."""

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
        """The values of all metrics in the records."""
        return mean_values(records, self.directions) | pass_values(records, self.passes, self.ks)


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


def mean_values(records: list[list[dict]], directions: dict | None = None) -> dict:
    """Values of each metric in the records: a row's is the mean over its samples that have one.

    `directions` says whether higher is better, None for neither, of the metrics where that is not so.
    """
    values = {}
    for name in dict.fromkeys(n for outs in records for r in outs for n in r["metrics"]):
        by_row = [[r["metrics"][name] for r in outs if r["metrics"].get(name) is not None] for outs in records]
        means = [sum(x) / len(x) if x else None for x in by_row]
        values[name] = Values(means, higher_is_better=(directions or {}).get(name, True))
    return values


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
        reason += " (cut off)" * (out["finish"] == "length")
        golds = [*map(grader.gold_answer, gold)] if isinstance(gold, list) else grader.gold_answer(gold)
        record = {"metrics": metrics | {"verified": verified}, "extracted": answer, "reason": reason, "gold": golds}
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
        if "prompt" not in row and row.get("test_list"):
            return f"{prompt}\nYour code should pass these tests:\n\n" + "\n".join(row["test_list"]) + "\n"
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


def readings(gold, choices: list[str]) -> dict[str, int]:
    """The choice that an answer without a label may mean, by each reading: its text or its position.

    Returns {reading: index}.
    """
    place = gold if isinstance(gold, int) and not isinstance(gold, bool) else -1
    if isinstance(gold, str):
        place = int(gold) if gold.isdecimal() else "ABCDEFGHIJKLMNOPQRSTUVWXYZ".find(gold) if len(gold) == 1 else -1
    indices = {"text": choices.index(gold) if gold in choices else -1, "place": place}
    return {reading: index for reading, index in indices.items() if 0 <= index < len(choices)}


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
        indices, expected = readings(gold, choices), "expected an index from 0, a letter, or the text"
        need(indices, f"got answer {gold!r} for {len(choices)} choices; {expected}")
        return choices, indices

    def choices(self, row: dict) -> tuple[list[str], int]:
        """The choices and the index of the right one."""
        choices, indices = self.choices_and_readings(row)
        return choices, indices.get(self.reading, next(iter(indices.values())))

    def decide(self, rows, first):
        """Read answers such as "0" the one way that fits all rows: as the text of a choice, or its place."""
        indices = [self.choices_and_readings(row)[1] for row in rows]
        unsure = next((i for i, of_row in enumerate(indices) if len({*of_row.values()}) > 1), None)
        if unsure is None:
            return
        fitting = [reading for reading in ("text", "place") if all(reading in of_row for of_row in indices)]
        texts, gold = self.choices_and_readings(rows[unsure])[0], self.require(rows[unsure], GOLD_COLUMNS)
        got = f"row {first + unsure}: got answer {gold!r} for choices {texts}, the text of one and the place of another"
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


def render(tokenizer, prompt, **template) -> str:
    """The text of chat messages by the chat template, up to where the model writes; text as it is."""
    if isinstance(prompt, str):
        return prompt
    try:
        return chat_text(tokenizer, prompt, **template)
    except Exception as error:  # a template raises what it likes, such as "system role not supported"
        raise UserError(f"got a prompt that the chat template refuses ({error}); try --chat_template off") from error


def encode_rendered(tokenizer, prompt, **template) -> list[int]:
    """Token ids of a prompt; the template of chat messages brings its own special tokens."""
    text = render(tokenizer, prompt, **template)
    return encode_text(tokenizer, text) if isinstance(prompt, str) else tokenizer.encode(text, add_special_tokens=False)


def encode_pair(tokenizer, prompt, choice: str, **template) -> tuple[list[int], list[int]]:
    """(context, continuation) ids; spaces between them belong to the continuation, as tokenizers have them."""
    text = render(tokenizer, prompt, **template)
    if isinstance(prompt, list):
        whole, before = (tokenizer.encode(part, add_special_tokens=False) for part in (text + choice, text.rstrip()))
    else:
        whole, before = (encode_text(tokenizer, part) for part in (f"{text} {choice}", text.rstrip()))
    return before, whole[len(before) :]


def use_template(config: Config, model) -> bool:
    """Whether prompts go through the chat template; for a server, whether they go as messages."""
    has = bool(model.tokenizer.chat_template) if model.tokenizer else bool(config.base_url)
    fits = has or config.chat_template != "on" or config.completion_column
    need(fits, f"got --chat_template on, but {model.source} has none; expected a chat model; try off")
    return has and config.chat_template != "off"


def make_requests(config: Config, task: Task, model, rows: list[dict], shots: list[dict]) -> tuple[list, list, int]:
    """(prompts, requests of each row, how many prompts were cut to fit the context)."""
    if not task.asks:
        pairs = [task.requests(row, model) for row in rows]
        return [task.text(row) for row in rows], [[Request(a, b) for a, b in pair] for pair in pairs], 0
    chat, prompts, requests, cut = use_template(config, model), [], [], 0
    task.in_turns = chat
    worked, template = [(task.question(row), task.target(row)) for row in shots], template_settings(config)
    form = TemplateForm(model.tokenizer) if chat and model.tokenizer else None
    strings = sum(isinstance(row.get("prompt"), str) for row in rows)
    if chat and strings and config.chat_template == "auto":
        got = f"{strings} of {len(rows)} prompts are strings, sent as the user's turn of the chat template"
        say(f"note: {got}; a run without --chat trains on them as they are: --chat_template off evaluates that")
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
    ids = encode_rendered(model.tokenizer, prompt, **template_settings(config)) or [model.prefix_id]
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
    computed, failure = {}, None
    bar = tqdm(total=len(local), desc=title, disable=None if rank == 0 else True, smoothing=0.1)

    def done(i: int, output: dict) -> None:
        computed[local[i].key()] = output
        cache.add(local[i].key(), output)
        bar.update()

    try:
        getattr(model, kind)(local, done)
    except Exception as error:  # the other processes wait for this one: tell them
        plain = size == 1 or isinstance(error, UserError)
        failure = error if plain else UserError(f"process {rank}: {type(error).__name__}: {error}")
    finally:
        bar.close()
        cache.close()
    parts = gather_rows([computed], failure) if size > 1 else [computed]
    if failure:
        raise failure
    fresh = {key: output for part in parts for key, output in part.items()}
    return [fresh[key] if key in fresh else cache.rows[key] for key in keys], reused


# -------------------------------------------------------------------- own tasks (src/programs/evaluation/own_tasks.py)


class RewardTask(Task):
    """Any reward functions: the graders of training are the graders here."""

    name = "reward"
    targets_named = True
    definition = "the mean of each function where it applies; score: their weighted sum"

    def check(self):
        specs = [*self.targets, *self.config.reward]
        need(specs, "got the task reward without functions; expected at least one; try --task reward:FILE.py:function")
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
        need(given, "got the task environment without one; expected a class; try --environment FILE.py:Class")
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
        examples = playable_rows(config, setup, list(map(self.example, rows)), self.source)
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
        conversations = play(examples, setup.environments, setup.bridge, answer, setup.limits, setup.form)
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
        import torch
        from transformers.cache_utils import DynamicCache

        size = len(self.prefix)
        if not size or any(len(ids) <= size or ids[:size] != self.prefix for ids in sequences):
            return sequences, None, None
        device = self.models.device
        if self.pairs is None:
            ids = torch.tensor([self.prefix], device=device)
            with torch.no_grad(), autocast(self.config, device):
                self.pairs = pairs_of(cached_states(self.models.policy, ids, torch.ones_like(ids), None)[1])
        cache, rows = DynamicCache(), len(sequences)
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
        import torch

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
        limits = [getattr(text, name, None) for name in ("n_positions", "max_position_embeddings", "n_ctx")]
        limits = [config.max_length, *limits, longest if longest < 10**12 else 2048]
        self.max_length = next(int(x) for x in limits if x)
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
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        need(Path(source).is_dir() or is_hub_id(source), f"got model {source!r}, which is not a folder; {LOADABLE}")
        dtype, base = compute_dtype(self.config, self.device), self.config.base_model
        try:
            options = {"dtype": dtype, **attention_choice(self.config)}
            model = merged(load_pretrained(AutoModelForCausalLM, source, base, **options))
            tokenizer = AutoTokenizer.from_pretrained(tokenizer_of(source, base))
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
                import torch

                torch.cuda.empty_cache()

    def generate(self, requests: list[Request], done, turns: TurnSampler | None = None, numbers=()) -> None:
        """Complete each request and call done(index, output) as its batch ends.

        `turns` samples requests that are one batch, the conversations with these `numbers`, from what it has kept.
        """
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
        import numpy as np

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
        import torch

        rows, mask, cache = list(map(list, batch)), None, None
        if shares:
            rows, mask, cache = self.engine.behind_prefix(rows)
        width = max(map(len, rows))
        ids = torch.tensor([r + [self.pad_id] * (width - len(r)) for r in rows], device=self.device)
        real = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows], device=self.device)
        chunk = max(1, LOGITS_AT_ONCE // self.vocabulary)
        with torch.no_grad():
            if cache:
                hidden, _ = cached_states(self.model, ids, torch.cat([mask, real], dim=1), cache)  # [n, width, H]
            else:
                hidden = plain_states(self.model, ids, real)
            for states, row, members in zip(hidden, rows, batch.values(), strict=True):
                for i in members:
                    scored = torch.tensor(requests[i].scored, device=self.device)
                    at = states[len(row) - len(scored) : len(row)]
                    nats, _ = logprobs_and_entropy(lambda h: all_logits(self.model, h), at, scored, 1.0, chunk)
                    total = float(nats.to(widest_float(nats.device)).sum())
                    need(math.isfinite(total), f"got a log-prob of {total}; expected a finite one; {NOT_FINITE}")
                    done(i, {"logprob": total, "count": len(scored)})


# -------------------------------------------------------------------------- models (src/programs/evaluation/models.py)

OURS = {  # arguments of the engine that follow from other settings
    "model": "--model",
    "tokenizer": "--model",
    "dtype": "--precision",
    "seed": "--seed",
    "gpu_memory_utilization": "--vllm_memory",
    "max_model_len": "--max_length",
    "enable_lora": "a model that the adapters are merged into",
    "enable_sleep_mode": "to leave it out: nothing else needs the memory",
}


class VllmModel(LocalModel):
    """The same by vLLM; completions only."""

    can_logprobs = False

    def tokens_at_once(self) -> int:
        """Any number: vLLM makes its own batches."""
        return 0

    def load(self, source: str) -> tuple:
        vllm = import_vllm("--engine vllm", "--engine hf")
        import torch
        from transformers import AutoConfig, AutoTokenizer

        refuse_adapter(source, "--model", "with --engine vllm")
        kind = str(compute_dtype(self.config, self.device)).removeprefix("torch.")
        settings = {"dtype": kind, "gpu_memory_utilization": self.config.vllm_memory, "seed": self.config.seed}
        settings["max_model_len"] = self.config.max_length or None
        if self.device.type == "cpu":
            settings["enforce_eager"] = True  # to compile takes minutes there, and gains little
        settings |= {"enable_prefix_caching": True} | vllm_options(self.config.vllm_args, OURS)
        try:
            self.vllm, self.llm = vllm, vllm.LLM(model=source, **settings)
            shape = AutoConfig.from_pretrained(source)
            tokenizer = AutoTokenizer.from_pretrained(source)
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


def run(config: Config) -> int:
    check_choices(config)
    need(config.task or config.compare, f"got no --task; expected one of {', '.join(TASKS)}; try --task math")
    if config.system_prompt and Path(config.system_prompt).is_file():
        config.system_prompt = Path(config.system_prompt).read_text(encoding="utf-8").strip()
    random.seed(config.seed)  # for the user's graders
    if config.compare:
        reports = list(map(read_report, config.compare))
        warn_of_trained(reports)
        print_comparison(*reports, config)
        return 0
    tasks = [make_task(text, config) for text in dict.fromkeys(config.task)]
    loaded = [(task, *task_rows(config, task)) for task in tasks]  # before a model is
    folder, reports = Path(config.output_dir), []
    folders = [folder / "before", folder / "after"] if len(config.model) == 2 else [folder]
    make_folder(config)
    for model in open_models(config):
        reports.append(evaluate(config, loaded, model, folders[len(reports)]))
        del model  # before the next one is loaded
    if world()[0] == 0:
        if len(reports) == 2:
            print_comparison(*reports, config)
        tell(f"report {folder}")
        target = shlex.quote(str(folder / "page.html"))
        say(f"as a page: python scripts/report.py {shlex.join(map(str, folders))} --output {target}")
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
