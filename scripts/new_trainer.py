#!/usr/bin/env python3
# Built from src/programs/new_trainer/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "pyarrow", "datasets", "peft"]
# ///
"""Write your own training script from a page of templates/, check it with your model and train with it: one command.

    python scripts/new_trainer.py grpo my_grpo.py --model M --data train.jsonl --eval_data test.jsonl \\
        --reward my.py:reward --minutes 2 --out runs/mine

does three things and stops at the first that fails. It writes the page to FILE: one file of plain PyTorch and
transformers, with all that you pass, such as `--clip_eps_high 0.28`, as its defaults: `python my_grpo.py` repeats the
run. selfcheck compares the page with independent computations on your model, data and reward. Then it trains into
--out, and diagnose.py judges the log.
--minutes covers check and training. Without --out it stops after the check, without --model after writing.

KIND is ppo, grpo, distillation (with --teacher) or multi_turn (with --environment instead of --reward). --change makes
a change of templates/changes/, such as `--change token_mean`; some flags make their change themselves: `--kl_coef 0.04`
(grpo), `--turn_baseline turn` (multi_turn), and for every page `--prompt_column question` and `--metrics_file FILE`, a
second log of updates alone, with names by `--metric_names reward=reward/mean,…`. --list prints all.
--inline also copies the file of the reward or environment into FILE.
--advantage (grpo, multi_turn) and --loss (not distillation) replace the page's function with yours, as in ppo_train.py,
and copy the text of its file. selfcheck then requires neither that advantages sum to 0 in a group nor that the loss
clips. A loss that by design lacks the policy gradient at ratio 1 needs `--leave_out advantages_detached`.

stdout has one JSON object: what was written and changed, the line of each function, the checks passed, how to repeat
the run, the held-out prompts that also occur in training, the accuracy before and after (mean returns for
conversations, also by number of answers), diagnose.py's verdict, whether the saved model loads, and how its weights
differ from the start's. `prove.py OUT` measures the accuracy again, by transformers' own generate. Ctrl-C and SIGTERM
end the training early; it then saves and evaluates. Whatever ends the command, stdout says how far it got.

    python scripts/new_trainer.py ppo my_ppo.py                              # the page alone
    python scripts/new_trainer.py grpo my_grpo.py --change token_mean --clip_eps_high 0.28 --max_new_tokens 64 \\
        --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --reward my.py:reward                   # and checked
    python scripts/new_trainer.py grpo my_grpo.py --advantage idea.py:median        # def median(scores, groups)

Exit codes: 0 done, 1 a check, the run or its diagnosis found something, 2 bad input, 128 + n ended by signal n.
"""

# Contents
#       115-169  messages       Errors that a user can fix, each with an exit code; messages on stderr; the layout of …
#       172-219  bundle         Paths of this bundle and of its embedded model, data and rewards; loading its other …
#       222-444  dialect        Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and replacements …
#       447-478  settings       Settings: dataclasses whose fields are flags and YAML keys, and the checks that all …
#       481-508  processes      The processes of a run: lazy torch, device, threads, sums, distribution of rows, …
#       511-518  user scripts   A user's Python script or notebook, read from its source
#       521-758  data files     Open data files as text: decompress, decode, refuse files without data; parse CSV and …
#       761-858  nested rows    Find rows inside other JSON: an object with a list of rows, columns instead of rows, …
#      861-1136  rows           Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their prompts
#     1139-1222  held out       Held-out prompts: split them off, and count or refuse those that also occur in training
#     1225-1259  prompts        Load training and held-out prompts as token ids
#     1262-1280  extracts       Extract from a Python file what some of its names need
#     1283-1464  user code      What users' rewards get: texts, copies of the columns, and their own state of the …
#     1467-1704  reward forms   The forms that a reward function may have, and loading rewards from files
#     1707-1737  rewards        The reward of a run, a weighted sum of functions; async ones run in one event loop, …
#     1740-1863  environments   Load and check environments: classes whose methods are tools for the model, or that …
#     1866-1876  play setup     Set up and score conversations, for all programs that take --environment
#     1879-1894  whole models   Refuse what transformers would make a model of by guessing: missing weights, other …
#     1897-1940  saved models   A run's saved model, judged by transformers alone: loading, weights, plain generate, KL
#     1943-1949  losses         The KL to the reference, policy and value losses, and how losses per token become one …
#     1952-2016  idle settings  Settings without effect in a configuration: named at the start, with what would …
#     2019-2030  output folder  The output folder: which run owns it, folders written whole or not at all, modes by …
#     2033-2079  run end        A run's end: summary.json, the faults that its last steps show, and what is printed
#     2082-2313  pages          The pages of templates/ as source: settings, changes, and the user's functions inserted
#     2316-2440  training       The check of a page, its run, and the results of both
#     2443-2685  command        The command line

import argparse
import ast
import builtins
import codecs
import contextlib
import csv
import difflib
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

# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, or 120 columns without one."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=32, width=shutil.get_terminal_size((120, 0)).columns - 2)


class UserError(Exception):
    """An error that the user can fix; printed without a traceback. `code` is the exit code."""

    code = 2


class RowFlaw(UserError):
    """A row that cannot be used: its field, what it held, what was expected, and how to fix it."""

    def __init__(self, field: str, got, expected: str, advice: str = "mending or leaving out the row"):
        super().__init__(f"{field}: got {got}; expected {expected}; try {advice}")
        self.parts = {"field": field, "got": str(got), "expected": expected, "try": advice}


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


def wait_passively() -> None:
    """Let idle OpenMP threads sleep after some microseconds; call it before torch loads.

    By default they spin for milliseconds, so that three runs on two cores mostly wait for each other.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


# ----------------------------------------------------------------- user scripts (src/parts/foundation/user_scripts.py)


def defaults_of(arguments: ast.arguments) -> dict[str, ast.expr | None]:
    """{parameter: its default, None without one} of a function, in order, without * and **."""
    names = [x.arg for x in (*arguments.posonlyargs, *arguments.args)]
    values = [*[None] * (len(names) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    return dict(zip([*names, *(x.arg for x in arguments.kwonlyargs)], values, strict=True))


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


# ---------------------------------------------------------------------------- extracts (src/parts/rewards/extracts.py)

IMPORTS = (ast.Import, ast.ImportFrom)
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


# -------------------------------------------------------------------------- user code (src/parts/rewards/user_code.py)


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


# --------------------------------------------------------------- environments (src/parts/environments/environments.py)

HOOKS = ("reset", "get_reward", "reply")  # public methods that are not tools
ENVIRONMENT_COLUMN = "environment"
HIDE = "; try a leading underscore for a method that is not a tool"


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


# ------------------------------------------------------------------- play setup (src/parts/environments/play_setup.py)


def check_environment_rows(environments: Environments, rows: list[dict]) -> None:
    """Raise UserError for a row that `reset` does not accept; rows with the same columns are checked once."""
    tried = set()
    for row in rows:
        key = (environments.kind_of(row["columns"]).name, *row["columns"])
        if key not in tried:
            environments.check_row(row["prompt"], row["columns"])
            tried.add(key)


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


def saved(start: str, out: Path) -> dict:
    """Whether the model in a folder loads, and how far it has moved from the model that its run started with."""
    try:
        transformers.AutoTokenizer.from_pretrained(out)
        return {"loads": True, **weight_change(load_plainly(start), load_plainly(out), dtype_of(out))}
    except Exception as error:  # whatever a folder that is not right makes transformers raise
        return {"loads": False, "error": f"{type(error).__name__}: {error}"}


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


# ------------------------------------------------------------------------------ run end (src/parts/running/run_end.py)

LAST = 3  # steps at the end that are judged, fewer in a run as short
KL_LOST = 10.0  # nats a token; an even choice among 22,000 tokens has an entropy of 10


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


# --------------------------------------------------------------------------- pages (src/programs/new_trainer/pages.py)

PAGES = ("ppo", "grpo", "distillation", "multi_turn")
# Settings that ask for check and run, not for the page alone.
OF_A_RUN = ("model", "teacher", "data", "eval_data", "reward", "environment", "out")
OF_A_CHECK = ("model", "teacher", "data", "reward", "environment")
OWN = {  # functions of the user's: the page's function that calls them, and what they may take
    "advantage": ("group_advantages", ("scores", "groups")),
    "loss": ("policy_loss", ("logprobs", "old_logprobs", "advantages", "config")),
}
OWN_ADVANTAGE = """{signature}
    \"\"\"Those of {name}, [B]; a group's completions are neighbours.\"\"\"
    groups = torch.arange(len(scores), device=scores.device) // group_size  # [B], equal = same prompt
    return {call}"""
OWN_LOSS = """{signature}
    \"\"\"(loss, ratio, clipped), all [B, T]: the loss of {name}, and 1 where it says that a bound changed it.\"\"\"
    config = SimpleNamespace({settings})
    found = {call}
    loss, clipped = found if isinstance(found, tuple) else (found, torch.zeros_like(found))
    return loss, (logprobs - old_logprobs).clamp(-20, 20).exp(), clipped.detach().float()"""
TYPES = {"int": int, "float": float, "str": str}


def page_text(kind: str) -> str:
    """The source of a page of templates/."""
    path = BUNDLE / "templates" / f"{kind}.py"
    need(path.is_file(), f"got no {path}; expected the bundle around this script; try the one in its scripts/")
    return path.read_text(encoding="utf-8")


def changes_of(kind: str) -> dict[str, dict]:
    """{name: {"what": sentence, "edits": [(old lines, new lines), ...]}} of templates/changes/NAME.diff for a page.

    A file's first line names its pages, its second says what it changes; each `@@` begins an edit, `@@ grpo` one of
    that page alone.
    """
    changes = {}
    for path in sorted((BUNDLE / "templates" / "changes").glob("*.diff")):
        head, *hunks = re.split(r"^@@ ?(.*)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        pages, summary = head.splitlines()
        if kind in pages.removeprefix("Pages: ").split(", "):
            edits = [
                tuple("".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[0] == sign) for sign in "-+")
                for names, hunk in zip(hunks[::2], hunks[1::2], strict=True)
                if not names or kind in names.split(", ")
            ]
            changes[path.stem] = {"what": summary, "edits": edits}
    return changes


def settings_of(source: str) -> dict[str, dict]:
    """{name: {"type": ..., "default": text or None, "what": comment}} of the page's Config."""
    config = next(x for x in ast.parse(source).body if isinstance(x, ast.ClassDef) and x.name == "Config")
    lines, settings = source.splitlines(), {}
    for node in config.body:
        default = None if node.value is None else ast.unparse(node.value)
        comment = lines[node.lineno - 1].partition("  # ")[2]
        settings[node.target.id] = {"type": ast.unparse(node.annotation), "default": default, "what": comment}
    return settings


def check_settings(source: str, given: dict) -> None:
    """Raise UserError for settings that the page refuses; its own `check_settings` says which."""
    names = {"math": math, "sys": sys}
    body = [node for node in ast.parse(source).body if ast.unparse(node).startswith(("RANGES ", "def check_settings("))]
    exec(compile(ast.Module(body, []), "page", "exec"), names)
    defaults = {name: eval(setting["default"] or "None", names) for name, setting in settings_of(source).items()}
    try:
        names["check_settings"](SimpleNamespace(**defaults | given))
    except SystemExit as error:
        raise UserError(str(error).removeprefix("error: ")) from None


def settings_of_changes(kind: str) -> dict[str, str]:
    """{setting: the change of the page that makes it}, as `kl_coef` of grpo."""
    made = re.compile(r"^    (\w+): \w+ = ", re.MULTILINE)
    texts = [(name, new) for name, change in changes_of(kind).items() for _, new in change["edits"]]
    return {setting: name for name, new in texts for setting in made.findall(new)}


def as_own(source: str, kind: str, file: str, changes: list[str]) -> str:
    """The page with a head that speaks of the user's file: its name, what it lacks, and nothing of the bundle."""

    def lacks(match):
        return f"Left out: {', '.join(x for x in match[1].split(', ') if x.lower() not in changes)}."

    source = source.replace(" on one page: copy it, read it from top to bottom, make it yours.", " in one file.", 1)
    source = source.replace(f"    python {kind}.py ", f"    python {Path(file).name} ", 1)
    if all(setting["default"] for setting in settings_of(source).values()):
        source = re.sub(r"^(    python \S+) --model .*", r"\1", source, count=1, flags=re.MULTILINE)
    return re.sub(r"^Left out, and in scripts/\w+\.py: (.*)\.$", lacks, source, count=1, flags=re.MULTILINE)


def with_default(source: str, name: str, value: object) -> str:
    """The page with another default of a setting; its comment stays where the line has room for it."""
    text = "math.inf" if value == math.inf else json.dumps(value, ensure_ascii=False)
    text = str(value) if isinstance(value, bool) else text  # false in JSON

    def line(match):
        code = f"{match[1]} = {text}"
        return code + match[2] * (len(code + match[2]) <= 120)

    return re.sub(rf"^(    {name}: \w+)(?: = .*?)?(  # .*|)$", line, source, count=1, flags=re.MULTILINE)


def with_change(source: str, kind: str, name: str) -> str:
    known = changes_of(kind)
    try_one = suggest(name, [*known]) or "; try --list"
    need(name in known, f"got --change {name}; expected one of {', '.join(known)} for {kind}{try_one}")
    for old, new in known[name]["edits"]:
        alone = f"got --change {name} beside another that touches the same line; expected one of them"
        need(source.count(old) == 1, f"{alone}; try the second by hand, as templates/changes/{name}.diff has it")
        source = source.replace(old, new)
    return source


def imported(node: ast.stmt) -> set[tuple]:
    """(module, name, alias) of each name that a statement imports."""
    return {(getattr(node, "module", ""), x.name, x.asname) for x in node.names} if isinstance(node, IMPORTS) else set()


def origins(nodes: list[ast.stmt]) -> dict[str, tuple]:
    """{name that statements bind: (module, name) that it imports, () for none}; `import a.b` imports a."""
    origin_of = {}
    for node in nodes:
        origin_of |= {} if isinstance(node, IMPORTS) else dict.fromkeys(bound_names(node), ())
        for module, name, alias in imported(node):
            name = name if module or alias else name.partition(".")[0]
            origin_of[alias or name] = module, name
    return origin_of


def with_text(source: str, flag: str, spec: str) -> str:
    """The page with the code of FILE.py:name before its Config, once.

    What only a program runs, the docstring, and imports that the page has are left out.
    """
    file, _, name = spec.rpartition(":")
    need(Path(file).is_file(), f"got --{flag} {spec!r}; expected FILE.py:name with a file that exists")
    text, page = Path(file).read_text(encoding="utf-8"), ast.parse(source).body
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise UserError(f"got {file}:{error.lineno}: {error.msg}; expected Python; try python {file}") from None
    theirs = [node.name for node in body if hasattr(node, "name")]
    known = f"which {file} does not define; expected one of {', '.join(theirs)}"
    need(name in theirs, f"got --{flag} {spec!r}, {known}")
    statements = {*map(ast.unparse, page)}
    if all(ast.unparse(x) in statements for x in body if hasattr(x, "name") or isinstance(x, ast.Assign)):
        return source  # another flag has inserted it
    of_page, others, lines = origins(page), origins(body), text.splitlines()
    page_imports = set().union(*map(imported, page))
    both = sorted(x for x in of_page.keys() & others if not of_page[x] or of_page[x] != others[x])
    need(not both, f"got {', '.join(both)} in {file} and in the page; expected other names; try renaming")
    for node in body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        shares_line = ";" in lines[node.lineno - 1]
        is_known = isinstance(node, IMPORTS) and imported(node) <= page_imports and not shares_line
        if is_text or is_main or is_known or getattr(node, "module", "") == "__future__":
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    text = re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines).strip())
    return source.replace("\n\n\n@dataclass\nclass Config:", f"\n\n\n{text}\n\n\n@dataclass\nclass Config:", 1)


def with_file(source: str, setting: str, spec: str) -> str:
    """The page with the code of FILE.py:name before its Config, and its own FILE.py:name as the setting's default."""
    source, name = with_text(source, setting, spec), spec.rpartition(":")[2]
    source = re.sub(rf" --{setting} my\.py:\w+", "", source, count=1)  # of the command at the page's top
    line = re.compile(rf"^(    {setting}: str).*$", re.MULTILINE)
    default = '= f"{__file__}:NAME"  # the one in this file; another: FILE.py:name'.replace("NAME", name)
    return line.sub(lambda match: f"{match[1]} {default}", source, count=1)


def defined(source: str, name: str):
    """The definition of a function at a file's top, or None."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return functions[0] if functions else None


def with_own(source: str, flag: str, spec: str) -> str:
    """The page whose advantages or loss are those of FILE.py:function, called with the arguments that it names."""
    place, takes = OWN[flag]
    page = defined(source, place)
    kinds = "grpo or multi_turn" if flag == "advantage" else "ppo, grpo or multi_turn"
    need(page, f"got --{flag} {spec}, for a page without {place}; expected {kinds}")
    source, name = with_text(source, flag, spec), spec.rpartition(":")[2]
    page, function = defined(source, place), defined(source, name)
    need(function, f"got --{flag} {spec}; expected a function, defined by def")
    unnamed = ", ".join(x.arg for x in function.args.posonlyargs)
    need(not unnamed, f"got --{flag} {spec}, which takes {unnamed} by position; try it without the /")
    named = defaults_of(function.args)
    lacking = [x for x, value in named.items() if value is None and x not in takes]
    among = f"expected parameters among {', '.join(takes)}"
    need(not lacking, f"got --{flag} {spec}, which needs {', '.join(lacking)}; {among}")
    call = f"{name}({', '.join(f'{x}={x}' for x in takes if x in named or function.args.kwarg)})"
    lines = source.splitlines()
    settings = ", ".join(f"{x.arg}={x.arg}" for x in page.args.args[3:])
    form = OWN_ADVANTAGE if flag == "advantage" else OWN_LOSS
    text = form.format(signature=lines[page.lineno - 1], name=name, call=call, settings=settings)
    if "config=config" not in call:
        text = re.sub(r"\n    config = .*", "", text)
    return "\n".join([*lines[: page.lineno - 1], text, *lines[page.end_lineno :]]) + "\n"


def page_parser(kind: str, source: str) -> argparse.ArgumentParser:
    """A parser of the page's settings; what is not given is None."""
    parser = argparse.ArgumentParser(
        prog=f"new_trainer.py {kind} FILE", usage="%(prog)s [settings of the page]", allow_abbrev=False, add_help=False
    )
    for name, setting in settings_of(source).items():
        if setting["type"] == "bool":
            parser.add_argument(f"--{name}", action="store_true", default=None)
            parser.add_argument(f"--no_{name}", dest=name, action="store_false", default=None)
        else:
            parser.add_argument(f"--{name}", type=TYPES[setting["type"]])
    return parser


def outline(source: str) -> dict[str, str]:
    """{class or function: "first-last line: what it is"} of the page."""
    lines = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            usual = "all settings; each is a flag" if node.name == "Config" else "yours"
            docstring = ast.get_docstring(node) or usual
            lines[node.name] = f"{node.lineno}-{node.end_lineno}: {docstring.partition(chr(10))[0]}"
    return lines


def as_flags(given: dict, names) -> list[str]:
    return [word for name in names if given.get(name) is not None for word in (f"--{name}", str(given[name]))]


# --------------------------------------------------------------------- training (src/programs/new_trainer/training.py)

STOPS = (signal.SIGINT, signal.SIGTERM)


def follow(command: list[str], **kwargs) -> tuple[int, int]:
    """(exit code of a command, signal that ended it or 0); SIGINT and SIGTERM reach it as SIGTERM, a third as SIGKILL.

    A command that a shell has started in the background would ignore SIGINT.
    """
    heard, processes = [], []

    def forward(number, frame):
        heard.append(number)
        for process in processes:
            process.send_signal(signal.SIGTERM if len(heard) < 3 else signal.SIGKILL)

    before = {number: signal.signal(number, forward) for number in STOPS}
    try:
        with subprocess.Popen(command, start_new_session=True, **kwargs) as process:
            processes.append(process)
            if heard:  # while it was being started
                process.terminate()
            code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code, heard[0] if heard else 0


def logged(file: Path) -> list[dict]:
    """The rows of a run's log, without a last line that was cut off when the run was killed."""
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.is_file() else []
    return [json.loads(line) for line in lines]


def checked(file: str, flags: list[str], left_out: list[str]) -> dict:
    """What selfcheck says about the file: how many checks pass, and which fail with what was seen."""
    say(f"selfcheck of {file} with your model, data and reward")
    command = [sys.executable, str(BUNDLE / "scripts" / "selfcheck.py"), file, *flags, "--json"]
    command += ["--leave_out", *left_out] if left_out else []
    with tempfile.TemporaryFile("w+") as out:
        code, ended_by = follow(command, stdout=out)
        out.seek(0)
        text = out.read()
    if ended_by:
        raise KeyboardInterrupt(ended_by)
    need(code in (0, 1) and text, f"got exit code {code} of selfcheck; expected 0; its message is above")
    printed = json.loads(text)
    rows = printed["checks"]
    failed = {row["name"]: row["measured"] for row in rows if row["status"] == "FAIL"}
    counts = {"passed": sum(row["status"] == "pass" for row in rows), "failed": failed}
    counts["seconds"] = printed.get("seconds", 0.0)
    return counts | ({"left_out": left_out} if left_out else {})


def time_left(given: dict, check: dict) -> dict:
    """--minutes less the time that the check took; {} where none are given."""
    if "minutes" not in given:
        return {}
    took = check["seconds"] / 60
    left = max(0.0, given["minutes"] - took)
    say(f"note: the check took {took:.1f} of {given['minutes']:g} minutes; the run has {left:.1f}")
    return {"minutes": round(left, 2)}


def page_rows(flag: str, file: str, column: str) -> tuple[list[dict], bool]:
    """(rows {"prompt", "columns"} of a file, whether a page reads it as it is); UserError without a prompt."""
    need(Path(file).is_file(), f"got --{flag} {file}, which is not a file; expected rows with a column {column}")
    form = SUFFIXES.get(Path(file).suffix.lower())
    try:
        lines = placed_json_lines(Path(file)) if form in (None, "jsonl") else []
        placed = read_prompts(file, column) if form else lines
        need(placed, f"got --{flag} {file} without rows; expected some with a column {column}")
        rows = [{"prompt": prompt_of(row, column, place), "columns": row} for place, row in placed]
        return rows, placed == lines
    except UserError as error:
        reader = f"python {BUNDLE / 'scripts' / 'data_loader.py'} {file} --out {Path(file).stem}_read.jsonl"
        raise UserError(f"{error}; other forms of data become such a file by {reader}") from None


def check_functions(given: dict, rows: list[dict], column: str) -> None:
    """Raise UserError for a reward or environment that needs a column which the data do not have."""
    prompt = rows[0]["prompt"]
    columns = {k: v for row in rows for k, v in row["columns"].items() if k != column}
    for function, _ in load_rewards(given["reward"]) if given.get("reward") else ():
        name = getattr(function, "__name__", type(function).__name__)
        check_columns({name: function}, {"prompt": prompt, "columns": columns})
    if given.get("environment"):
        theirs = [row | {"columns": {k: v for k, v in row["columns"].items() if k != column}} for row in rows]
        check_environment_rows(load_environments(given["environment"]), theirs)


def by_answers(samples: list[dict]) -> dict[int, dict]:
    """{answers of the model in a conversation: how many conversations in the log, and their mean return}."""
    scores = {}
    for sample in samples:
        before = len(sample["prompt"]) if isinstance(sample["prompt"], list) else 1
        answers = sum(message["role"] == "assistant" for message in sample["messages"][before:])
        scores.setdefault(answers, []).append(sample["score"])
    return {n: {"conversations": len(x), "mean_return": round(sum(x) / len(x), 4)} for n, x in sorted(scores.items())}


def trained(file: str, flags: list[str], model: str, out: Path, record: dict) -> None:
    """Train with the file; `record` gets what the run says of itself, what diagnose.py says, and what it saved."""
    earlier = out.stat().st_ino if out.exists() else None
    code, ended_by = follow([sys.executable, file, *flags], stdout=sys.stderr)
    record |= {"exit_code": code, "ended_by": ended_by, "out": str(out)}
    if not out.exists() or out.stat().st_ino == earlier:  # it ended before it began: what lies there is an earlier run
        return
    steps = logged(out / "metrics.jsonl")
    record |= {"steps": max((row["step"] for row in steps), default=0), "faults": faults_at_end(steps, {}, "--lr")}
    samples = logged(out / "samples.jsonl")
    record["last_samples"] = [{k: str(x)[:300] for k, x in sample.items()} for sample in samples[-2:]]
    if samples and "messages" in samples[-1]:
        record["by_answers"] = by_answers(samples)
    if (out / "result.json").is_file():
        record |= json.loads((out / "result.json").read_text(encoding="utf-8"))
    if not code:
        command = [sys.executable, str(BUNDLE / "scripts" / "diagnose.py"), str(out), "--json"]
        if record["steps"]:
            judged = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["runs"][0]
            names = ("verdict", "since_step", "causes", "had", "lacked", "error")
            record |= {name: judged[name] for name in names if name in judged}
        record["saved_model"] = saved(model, out)


# ----------------------------------------------------------------------- command (src/programs/new_trainer/command.py)

HINTS = {"reward": "FILE.py:function", "environment": "FILE.py:Class", "data": "FILE.jsonl", "teacher": "FOLDER"}
OWN_CHECKS = {"advantage": "group_advantages", "loss": "policy_clip"}  # of the page's own ones, not of the user's
NO_ACCURACY = "no accuracy before and after is measured; try --hold_out N, or --eval_data FILE.jsonl with other prompts"
CLIPS = ("clip_eps_low", "clip_eps_high", "dual_clip")
REPLACED = {"monte_carlo": ("gae_lambda",), "cispo": CLIPS, "loss": CLIPS}  # what a change, or an own loss, leaves idle
OF_LORA = "change lora: the default lr is for all weights; try ten times that: --lr 1e-5 for 50M parameters or more"


def page_notes(source: str, settings: dict, changes: list[str]) -> list[str]:
    """What of the given settings and changes does nothing in the page, and what would make it act."""
    page = {name: setting["default"] for name, setting in settings_of(source).items()}
    updates = int(page.get("epochs") or 1) * int(page.get("minibatches") or 1)
    once = "without effect, as a batch has one optimizer step, whose ratio is 1; try --minibatches 4"
    replacing = [name for name in REPLACED if name in changes and (name != "loss" or "config=config" not in source)]
    idle = [(name, change) for change in replacing for name in REPLACED[change] if name in settings]
    notes = [f"{name} {settings[name]}: without effect beside {change}; try without it" for name, change in idle]
    notes += [OF_LORA] if "lora" in changes and "lr" not in settings else []
    if "loss" in changes:  # what it does with the ratio is not known
        return notes
    config = SimpleNamespace(given={*settings}, **{"data": "", "eval_data": ""} | settings)
    steps = [f"change {name}: {once}" for name in ("gspo", "cispo") if name in changes and updates == 1]
    return [*notes, *idle_settings(config, updates), *steps]


def check_file(file: str, force: bool) -> None:
    """Raise UserError for a FILE that cannot be written, or that is there."""
    need(file.endswith(".py"), f"got FILE {file}; expected a name ending in .py")
    folder = Path(file).resolve().parent
    need(folder.is_dir(), f"got FILE {file}; expected a folder that exists; try mkdir -p {folder}")
    need(force or not Path(file).exists(), f"got FILE {file}, which exists; expected a new name; try --force")


def check_out(given: dict, out: Path) -> None:
    """Raise UserError where the output folder is not an earlier run's."""
    free = "out" not in given or not out.exists() or (out / "settings.json").is_file()
    need(free, f"got --out {out}, which exists and is not an earlier run; expected a new folder")


def rows_text(rows: list[dict]) -> str:
    """JSONL that a page reads; dates and decimals become text."""
    return "".join(json.dumps(row["columns"], ensure_ascii=False, default=str) + "\n" for row in rows)


def read_data(args, given: dict, started: bool) -> tuple[dict[str, list[dict]], dict[str, Path]]:
    """(rows, JSONL file to write) by setting; held-out rows know whether they train.

    The files lie beside OUT, which a later run moves. They hold rows that are split here, or that no page reads.
    """
    column = given.get("prompt_column", "prompt")
    names = [name for name in ("data", "eval_data") if started and given.get(name)]
    read = {name: page_rows(name, given[name], column) for name in names}
    rows, moved = {name: x for name, (x, _) in read.items()}, {name for name, (_, as_is) in read.items() if not as_is}
    if args.hold_out is not None:
        ready = "out" in given and rows.get("data")
        need(ready, f"got --hold_out {args.hold_out} without a run; expected --data and --out, as for a run")
        parts = hold_out(SimpleNamespace(**{"eval_data": "", "hold_out": args.hold_out} | given), rows["data"])
        rows = dict(zip(("data", "eval_data"), parts, strict=True))
        moved = {*rows}
    folder = Path(f"{Path(given.get('out') or args.file.removesuffix('.py'))}_data")
    files = {"data": folder / "train.jsonl", "eval_data": folder / "held_out.jsonl"}
    files = {name: file for name, file in files.items() if name in moved}
    for name, file in files.items():
        same = not file.exists() or file.read_text(encoding="utf-8") == rows_text(rows[name])
        need(same, f"got {file}, which has other rows; expected a new folder; try another --out")
        say(f"note: the page reads {file}, {len(rows[name])} rows")
    given |= {name: str(file) for name, file in files.items()}
    if "eval_data" in rows:
        mark_trained(SimpleNamespace(**{"allow_overlap": False} | given), rows["data"], rows["eval_data"])
    return rows, files


def check_missing(source: str, given: dict) -> None:
    """Raise UserError for settings that a run of the page needs and the command line does not give."""
    missing = [x for x, setting in settings_of(source).items() if setting["default"] is None and x not in given]
    named = [x for x in OF_A_RUN if x in given]
    flags, beside = (", ".join(f"--{name}" for name in names) for names in (missing, named))
    remedy = " ".join(f"--{name} {HINTS.get(name, '…')}" for name in missing)
    need(not missing, f"got {beside} without {flags}, which check and run need; try {remedy}, or FILE alone")


def edited_page(args, rest: list[str], theirs: dict[str, str]) -> tuple[str, list[str], list[str]]:
    """The page with the user's functions and changes; the names of the changes; flags in the page's own words."""
    source = page_text(args.kind)
    for flag, spec in theirs.items():
        source = with_own(source, flag, spec)
    settings, made = settings_of(source), settings_of_changes(args.kind)
    rest = in_own_words(rest, [*settings, *made])
    flags = [word.partition("=")[0].removeprefix("--").replace("-", "_") for word in rest if word.startswith("--")]
    brought = [made[flag] for flag in flags if flag in made and flag not in settings]
    changes = list(dict.fromkeys([*args.change, *brought]))
    for name in changes:
        source = with_change(source, args.kind, name)
    return source, changes, rest


def given_settings(kind: str, source: str, words: list[str]) -> dict:
    flags = vars(parse_flags(page_parser(kind, source), words))
    given = {name: value for name, value in flags.items() if value is not None}
    check_settings(source, given)
    return given


def new_trainer(args, rest: list[str], report: dict) -> int:
    """Write, check and train; `report` gets what is known, step by step. Returns the exit code."""
    theirs = {flag: getattr(args, flag) for flag in OWN if getattr(args, flag)}
    source, changes, own_words = edited_page(args, rest, theirs)
    given = given_settings(args.kind, source, own_words)
    counts = {name: int(x["default"]) for name, x in settings_of(source).items() if x["type"] == "int"}
    check_units(counts | given, rest)
    check_file(args.file, args.force)
    is_new = not Path(args.file).exists()
    started = any(name in given for name in OF_A_RUN if not args.inline or name not in ("environment", "reward"))
    if started:
        check_missing(source, given)
    out = Path(given.get("out", ""))
    check_out(given, out)
    rows, files = read_data(args, given, started)
    held_out = rows.get("eval_data", [])
    if given.get("reward"):
        given["reward"] = full_spec(given["reward"])
    if "data" in rows:
        check_functions(given, rows["data"], given.get("prompt_column", "prompt"))
    settings = {**given}
    for name, value in settings.items():
        source = with_default(source, name, value)
    if args.inline:
        setting = next((name for name in ("environment", "reward") if name in given), None)
        need(setting, "got --inline without a reward or environment; expected one; try --reward FILE.py:function")
        source = with_file(source, setting, given.pop(setting))
    notes = page_notes(source, settings, [*changes, *theirs])
    notes += [NO_ACCURACY] if "out" in given and "eval_data" not in given else []
    source = as_own(source, args.kind, args.file, changes)
    for name, file in files.items():
        write_text(file, rows_text(rows[name]))
    Path(args.file).write_text(source, encoding="utf-8")
    report |= {"wrote": args.file, "lines": len(source.splitlines()), "settings": settings, "changes": changes}
    report |= ({"own": theirs} if theirs else {}) | {"functions": outline(source), "notes": notes}
    for note in notes:
        say(f"note: {note}")
    if not started:
        return 0
    unread = {given[n]: dict(warn_unread(given[n], [(r["columns"], r["prompt"]) for r in rows[n]])) for n in rows}
    report |= {"unread": unread} if any(unread.values()) else {}
    left_out = [*args.leave_out, *(check for name, check in OWN_CHECKS.items() if name in theirs)]
    try:
        report["selfcheck"] = checked(args.file, as_flags(given, OF_A_CHECK), left_out)
    except UserError:
        if is_new:  # the same command, its data or reward mended, then needs no --force
            Path(args.file).unlink()
            report["wrote"] = None
        raise
    report["command"] = shlex.join(["python", args.file])
    if report["selfcheck"]["failed"] or "out" not in given:
        return int(bool(report["selfcheck"]["failed"]))
    if held_out:
        report["held_out"] = {"rows": len(held_out), "also_in_training": sum(row["trains"] for row in held_out)}
    report["run"] = run = {}
    flags = as_flags(time_left(given, report["selfcheck"]), ["minutes"])
    trained(args.file, flags, given["model"], out, run)
    if run["ended_by"]:
        return 128 + run["ended_by"]
    return int(failed(run))


def failed(run: dict) -> bool:
    """Whether a run ended badly, has a certain cause, or saved a model that does not load."""
    certain = any(cause["certainty"] == "certain" for cause in run.get("causes", ()))
    return bool(run["exit_code"] or certain or not run.get("saved_model", {"loads": True})["loads"])


def stop(number, frame) -> None:
    """Signal handler; started in the background of a shell, a program would ignore SIGINT."""
    raise KeyboardInterrupt(number)


def catalogue() -> str:
    lines = []
    for kind in PAGES:
        source = page_text(kind)
        lines.append(f"{kind} ({len(source.splitlines())} lines)")
        lines += [f"    --change {name}: {change['what']}" for name, change in changes_of(kind).items()]
        for name, setting in settings_of(source).items():
            default = "required" if setting["default"] is None else setting["default"]
            lines.append(f"    --{name} ({default})  {setting['what']}".rstrip())
    return "\n".join(lines)


def trainer_parser() -> argparse.ArgumentParser:
    """The command line's own flags; those of the page are parsed by `page_parser`."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage="%(prog)s KIND FILE [-h] [--list] [--change NAME ...] [--advantage F] [--loss F] [--leave_out NAME ...] "
        "[--inline] [--hold_out N] [--force] [settings of the page]",
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("kind", choices=PAGES, metavar="KIND", help=", ".join(PAGES))
    parser.add_argument("file", metavar="FILE", help="script to write, NAME.py")
    parser.add_argument("--list", action="store_true", help="print the changes and settings of all pages")
    parser.add_argument("--change", nargs="+", action="extend", default=[], metavar="NAME", help="a change of --list")
    inline = "copy the file of the reward or environment into FILE, as its default"
    parser.add_argument("--inline", action="store_true", help=inline)
    left_out = "checks of selfcheck that do not fit your method"
    parser.add_argument("--leave_out", "--leave-out", nargs="+", default=[], metavar="NAME", help=left_out)
    for flag, (_, takes) in OWN.items():
        help_text = f"your function; its parameters are any of {', '.join(takes)}"
        parser.add_argument(f"--{flag}", default="", metavar="FILE.py:function", help=help_text)
    kept = "rows of --data kept back, in place of --eval_data; writes OUT_data/train.jsonl and OUT_data/held_out.jsonl"
    parser.add_argument("--hold_out", "--hold-out", type=int, metavar="N", help=kept)
    parser.add_argument("--force", action="store_true", help="write over FILE")
    return parser


def main(argv: list[str] | None = None) -> int:
    if "--list" in (sys.argv[1:] if argv is None else argv):
        tell(catalogue())
        return 0
    args, rest = trainer_parser().parse_known_args(argv)
    wait_passively()  # the page and its check inherit it
    report, before = {}, {number: signal.signal(number, stop) for number in STOPS}
    try:
        code = new_trainer(args, rest, report)
    except (UserError, OSError) as error:
        text = str(error) if isinstance(error, UserError) else f"got {error}; expected a folder to write to"
        print(f"error: {text}", file=sys.stderr)
        code = getattr(error, "code", 2)
        if report:  # FILE is written
            report["error"] = text
    except KeyboardInterrupt as error:
        report["ended_by"] = error.args[0]
        code = 128 + report["ended_by"]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if report:
            tell(json.dumps(report, indent=1, ensure_ascii=False))
    return code


if __name__ == "__main__":
    sys.exit(main())
