#!/usr/bin/env python3
# Built from src/programs/selfcheck/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.6", "transformers>=5.5,<6", "numpy", "pyyaml", "tqdm", "matplotlib", "pyarrow", "datasets", "peft",
# ]
# ///
"""Check a trainer on your own model, tokenizer and data, in seconds, before a long run.

TRAINER.py is a page of templates/, scripts/ppo_train.py, scripts/on_policy_distillation.py, a copy, or any trainer in
plain PyTorch with the functions that `--contract` lists. If yours lacks some, put a copy of templates/grpo.py beside it
and `from grpo import *` before its own. A trainer that leaves the training to TRL cannot be checked.

selfcheck calls these functions on a few short sequences and compares what they return with its own computations from
the published formulas and the plain networks' logits:

    log-prob     log softmax(logits[t - 1] / temperature)[token t]
    gradient     d/dtheta  1/N sum over response tokens of -A_t ratio_t - entropy_coef H_t,  A constant, ratio = 1
    clip         the same of max(-A ratio, -A clip(ratio, 1 - clip_eps_low, 1 + clip_eps_high)), old log-probs moved
    divergence   d/dtheta  1/N sum over response tokens of KL(student || teacher) over the vocabulary, in a distillation
    GAE          A_t = sum_l (gamma lambda)^l (r_{t+l} + gamma V_{t+l+1} - V_{t+l}) over response tokens, returns A + V
    critic       d/dphi  vf_coef/N sum of 1/2 max((V - R)^2, (V_old + clip(V - V_old, -value_clip, value_clip) - R)^2)

A page's gradient may be that of any of three means: over tokens, over completions, or divided by max_new_tokens. The
table says which one it is, and for distillation whether the KL is reverse or forward.

If a page plays conversations, selfcheck also plays some with its own environment and answers. The ids of these answers
differ from those of their text encoded again, which shows which tokens were sampled and whose return is whose.

Policy and critic get a little noise in memory, because on the untouched model many faults give the right numbers.
Nothing is trained or written. The model runs about a hundred times: for a large one, use a small one of its family.

Deliberately left out: whether the settings learn anything, several processes, code that only a longer run reaches
(checkpoints, schedules), the reward (reward_preflight.py does), tool calls, a trainer's `train`, a page's `rollout`
without an environment, loss scaling in fp16. Batch, prompts and completions are cut to a few short ones; all other
settings are yours. The embedded model and data stand in for those that you leave out.

    python scripts/selfcheck.py templates/ppo.py                                      # CPU, the embedded model, seconds
    python scripts/selfcheck.py my_grpo.py --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl \\
        --reward my_rewards.py:correct                                                # the flags of the run, one GPU
    CUDA_VISIBLE_DEVICES=0 python scripts/selfcheck.py my_ppo_train.py --config run.yaml --json   # before torchrun

Exit codes: 0 every check passes, 1 one fails, 2 bad input.
"""

# Contents
#       101-141  messages             Errors that a user can fix, each with an exit code; messages on stderr; the …
#       144-156  bundle               Paths of this bundle and of its embedded model, data and rewards; loading its …
#       159-355  dialect              Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and …
#       358-402  processes            The processes of a run: lazy torch, device, threads, sums, distribution of …
#       405-423  exit codes           Program exit: errors that a user can fix become a message and an exit code
#       426-572  user code            What users' rewards get: texts, copies of the columns, and their own state of …
#       575-670  reward forms         The forms that a reward function may have, and loading rewards from files
#       673-705  batches              Batches: masked statistics, padding, micro-batches, and packed layouts that …
#       708-767  oracles              Formulas as loops over single tokens, independent of the numerics, for checks …
#       770-982  trainer              The interface between trainers and checks, and comparing figures
#      985-1052  input checks         Checks of inputs: tokens, chat template
#     1055-1232  conversation checks  Checks of conversations: sampled ids stay, only they are trained, nothing …
#     1235-1580  adapters             Trainers of one page and of scripts behind the interface of the checks; what …
#     1583-2023  numeric checks       Checks of critic, advantages, log-probs, padding and gradients against figures …
#     2026-2184  run                  Load and prepare the trainer, run the checks, the command line

import argparse
import builtins
import contextlib
import copy
import ctypes
import dataclasses
import difflib
import gc
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
import statistics
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, or 120 columns without one."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=32, width=shutil.get_terminal_size((120, 0)).columns - 2)


class UserError(Exception):
    """An error that the user can fix; printed without a traceback. `code` is the exit code."""

    code = 2


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def say(text: str) -> None:
    """Print a diagnostic line on stderr, in the first process of a torchrun launch only."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


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
EMBEDDED_ENVIRONMENTS = str(BUNDLE / "examples" / "environments.py")
EMBEDDED_REWARDS = str(BUNDLE / "examples" / "reward_functions_library.py")


def in_bundle(path: str) -> str:
    """How a command names a file of this bundle: as it is, if that works from here, else by its whole path."""
    return path if Path(path).is_file() or not (BUNDLE / path).is_file() else shlex.quote(str(BUNDLE / path))


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


# ----------------------------------------------------------------------- processes (src/parts/foundation/processes.py)

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # from glibc's malloc.h


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


# -------------------------------------------------------------------------- user code (src/parts/rewards/user_code.py)

# how files of libraries begin, and what is no file
LIBRARY = re.escape(sysconfig.get_path("stdlib")) + r"|<|.*[/\\](site|dist)-packages[/\\]"


def user_place(error: BaseException) -> str:
    """' at FILE:LINE' where a user's code raised: the innermost frame outside libraries and the caller; else ""."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    below = [(f.f_code.co_filename, line) for f, line in frames if f.f_globals is not frames[0][0].f_globals]
    places = [f" at {file}:{line}" for file, line in below if not re.match(LIBRARY, file)]
    return places[-1] if places else ""


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


# ----------------------------------------------------------------------------- batches (src/parts/networks/batches.py)


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


# ------------------------------------------------------------------------- trainer (src/programs/selfcheck/trainer.py)

SAMPLED = 8  # prompts to sample from
NEW_TOKENS = 32  # tokens of a completion
PROBES = 4  # fixed sequences for log-probs and gradients

# tolerances: mean difference of log-probs in nats (ten times that for a token), relative difference of gradients
LIMITS = {"fp32": (1e-4, 1e-3), "bf16": (0.1, 0.15)}


@dataclasses.dataclass(frozen=True)
class Definition:
    """A published loss, with whose gradient the trainer's is compared."""

    name: str  # "" for the only one
    aggregation: str = "token_mean"
    constant: float = 1.0  # divides a sequence's sum in some aggregations
    entropy_coef: float = 0.0
    kl_coef: float = 0.0  # weight of the divergence from the teacher
    beta: float = 1.0  # kind of divergence: 1 reverse KL, 0 forward KL, between them Jensen-Shannon
    teacher: object = None
    width: int | None = None  # size of the vocabulary that both models share


class LossReached(BaseException):
    """Ends an update at its first loss."""


class Trainer:
    """A module with the functions of the contract, which a subclass calls:

    missing() -> names; parse(flags)
    load() sets config, device, precision, models, with_reference, rows
    play(record, rows) -> (batch, scores) of conversations with a record's environments and answers, of pages alone
    generated(prompts) -> (samples, batch); collate(samples) -> batch
    logprobs(batch, **settings) -> (log-probs, entropy), [B, T] each, without gradient
    experience(samples, models, **settings) -> batch, by default of the probes; accumulate(config, batch) adds gradients
    per_pass(rows): settings for so many rows in a pass, with only a few of their tokens at the output layer at once
    definitions() -> (published losses, of which the trainer's must be one; or why there is none)
    clips() -> (the clips of `own_surrogate` that its policy loss may have; or why there are none)
    start_update(batch, models, step) calls the trainer's `update` on the batch; `step` replaces the optimizer's
    group_of(samples) -> (the group of each; or why a group's advantages need not sum to 0)
    values_after(ids) -> the plain critic's values [T] of the text up to each token of ids [1, T]; None without one
    """

    takes_holes = False  # whether responses may contain tokens that were not sampled

    def __init__(self, module):
        self.module = module
        self.config = self.models = self.with_reference = self.engine = None
        self.probes = []  # samples for log-probs and gradients
        self.initial = None  # log-probs of the probes' responses under the untouched policy, [tokens]
        self.moved = 0.0  # nats per token between the policy and the untouched one

    @property
    def limits(self) -> tuple[float, float]:
        """Tolerances of log-probs and of gradients."""
        return LIMITS[self.precision]

    @property
    def plays(self) -> bool:
        """Whether the trainer plays conversations with an environment."""
        return bool(getattr(self.config, "environment", ""))

    def settle_models(self, kl_coef: float) -> None:
        """Set `models` to those that were loaded with a reference, without it if nothing weighs its KL."""
        self.models = copy.copy(self.with_reference)
        self.models.reference = self.models.reference if kl_coef else None

    def sample(self, prompt: list[int], ids: list[int], logprobs: list[float]) -> dict:
        """A completion."""
        sample = {"prompt_ids": [*prompt], "response_ids": ids, "rollout_logprobs": logprobs}
        return sample | {"finished": ids[-1] in self.models.eos_ids, "score": 0.0}

    def gradients(self, batch: dict, **settings) -> list:
        """Gradients of a batch by the trainer's own function, one vector per network."""
        self.accumulate(dataclasses.replace(self.config, **settings), batch)
        return self.take_gradients()

    def take_gradients(self) -> list:
        """`gradients_of` the networks, which are then cleared."""
        vectors = gradients_of(self.models)
        rest(self.models)
        return vectors

    def first_loss(self, batch: dict, models) -> tuple | None:
        """(Log-probs, old log-probs), [n, T], of `update`'s first call of the policy loss; () if it makes none.

        None if the trainer has no functions of these names.
        """
        if not hasattr(self.module, "update"):
            return None
        table = getattr(self.module, "LOSSES", getattr(self.module.update, "__globals__", {}))  # a template's globals
        name = getattr(self.config, "loss", "policy_loss")
        if name not in table:
            return None
        loss, inputs = table[name], []

        def watched(logprobs, old_logprobs, *args, **kwargs):
            inputs.extend((logprobs, old_logprobs))
            raise LossReached

        watched.__dict__.update(getattr(loss, "__dict__", {}))  # attributes that the table's users read
        table[name] = watched
        try:
            with contextlib.suppress(LossReached):
                self.start_update(batch, models, lambda: None)
        finally:
            table[name] = loss
            rest(models)
        return tuple(inputs)

    def steps_of_update(self) -> list[list]:
        """Gradients at each optimizer step of two calls of `update`; they are neither clipped nor applied."""

        def norm(parameters, *_, **__):
            return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

        steps, clip = [], torch.nn.utils.clip_grad_norm_
        torch.nn.utils.clip_grad_norm_ = norm
        try:
            for _ in range(2):
                self.start_update(self.settled(), self.models, lambda: steps.append(gradients_of(self.models)))
        finally:
            torch.nn.utils.clip_grad_norm_ = clip
            rest(self.models)
        return steps

    def settled(self) -> dict:
        """The trainer's batch, detached, with current log-probs in all columns, so that one fault fails one check."""
        batch = {name: x.detach() for name, x in self.experience().items()}
        current = self.logprobs(self.collate(self.probes))[0]
        names = {"old_logprobs", "ref_logprobs", "rollout_logprobs"} & {*batch}
        return batch | dict.fromkeys(names, current)

    def response_logprobs(self, samples: list[dict], batch: dict | None = None):
        """The trainer's log-probs of the sampled tokens, [tokens]."""
        batch = batch or self.collate(samples)
        return self.logprobs(batch)[0][responses(batch, samples)]


def check(moved: bool = True, plays: bool = False):
    """Mark `function(trainer) -> (passed, or None if not applicable; measurement)` as a check.

    "Try: …" at the end of its docstring is the advice if it fails.

    Args:
        moved: whether the policy must differ from its start.
        plays: whether it needs a page that plays conversations.
    """

    def mark(function):
        function.advice = " ".join(function.__doc__.partition("Try: ")[2].split()).rstrip(".")
        function.moved, function.plays = moved, plays
        return function

    return mark


def networks(models) -> list:
    return [x for x in (models.policy, getattr(models, "critic", None)) if x is not None]


def rest(models) -> None:
    """Drop gradients and leave training mode."""
    for network in networks(models):
        network.zero_grad()
        network.eval()


def gradients_of(models) -> list:
    """One vector per network: at most 8,191 evenly spaced entries of each parameter's gradient."""
    vectors = []
    for network in networks(models):
        parts = [torch.zeros(1)]
        for p in (p for p in network.parameters() if p.requires_grad):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            parts.append(g.flatten()[:: max(1, g.numel() // 4096)].float().cpu())
        vectors.append(torch.cat(parts))
    return vectors


def agree(a, b, limit: float) -> tuple[bool, str]:
    """(Whether two vectors differ by at most `limit` on average and ten times that anywhere, both as text)."""
    difference = (a.float() - b.float()).abs()
    mean, peak = difference.mean().item(), difference.max().item()
    return mean <= limit and peak <= 10 * limit, f"{peak:.1e} nats apart at most, {mean:.1e} on average"


def apart(gradients: list, expected: list) -> tuple[float, float]:
    """(Largest relative difference |a - b| / |b| of two lists of vectors, ratio of the first pair's norms)."""
    pairs = [(a, b, b.norm().clamp(min=1e-12)) for a, b in zip(gradients, expected, strict=True)]
    ratio = (pairs[0][0].norm() / pairs[0][2]).item()
    return largest(((a - b).norm() / norm).item() for a, b, norm in pairs), ratio


def largest(values) -> float:
    """The maximum; nan counts as infinite."""
    return max(math.inf if math.isnan(value) else value for value in values)


def sampled_places(sample: dict) -> list[int]:
    """1 for each token after the prompt that the policy sampled: all, unless the sample has a `response_mask`."""
    return sample.get("response_mask", [1] * len(sample["response_ids"]))


def responses(batch: dict, samples: list[dict], whole: bool = False):
    """True [B, T] at sampled tokens, or (`whole`) at all after the prompts, wherever the pads are."""
    mask = torch.zeros_like(batch["attention_mask"])
    for row, real, sample in zip(mask, batch["attention_mask"], samples, strict=True):
        places = [1] * len(sample["response_ids"]) if whole else sampled_places(sample)
        row[real.nonzero().squeeze(-1)[-len(places) :]] = torch.tensor(places, device=row.device)
    return mask.bool()


# --------------------------------------------------------------- input checks (src/programs/selfcheck/input_checks.py)

ANSWER = "Yes"  # the assistant's text in rendered chats


@check(moved=False)
def special_tokens(s: Trainer):
    """End tokens are known and end a turn of the template; all ids are rows of the embedding; one BOS at most.

    Try: use this checkpoint's pad, end tokens and tokenizer; if a turn ends with another token, add that to
        eos_token_id in the model's generation config.
    """
    tokenizer, ends, pad = s.models.tokenizer, s.models.eos_ids, s.models.pad_id
    eos, bos, closing = tokenizer.eos_token_id, tokenizer.bos_token_id, turn_end(tokenizer)
    rows = s.models.policy.get_input_embeddings().weight.shape[0]
    prompts = [list(row["prompt_ids"]) for row in s.rows]
    faults = {
        "no end token": not ends,
        f"the tokenizer's end token {eos} is not among them": eos is not None and eos not in ends,
        "an end token has no embedding": not all(0 <= i < rows for i in ends),
        f"pad {pad} has no embedding": not 0 <= pad < rows,
        "tokens without an embedding": len(tokenizer) > rows,
        "prompt tokens without an embedding": max(map(max, prompts)) >= rows,
        "prompts begin with two BOS tokens": bos is not None and any(ids[:2] == [bos, bos] for ids in prompts),
        f"the template ends a turn with {closing}, no end token": closing and not set(closing) & set(ends),
    }
    names = ", ".join(f"{i} {tokenizer.convert_ids_to_tokens(i)!r}" for i in ends)
    pads = f"{pad} is an end token too" if pad in ends else pad
    text = f"end {names}; pad {pads}; {len(tokenizer)} tokens, embedding {rows}"
    true = [fault for fault, is_true in faults.items() if is_true]
    return not true, "; ".join([text, *true])


def turn_end(tokenizer) -> list[int]:
    """The special tokens with which the chat template closes an assistant turn."""
    if not tokenizer.chat_template:
        return []
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]
    text = tokenizer.apply_chat_template(chat, tokenize=False).rpartition(ANSWER)[2]
    special = set(tokenizer.all_special_ids)
    return [i for i in tokenizer(text, add_special_tokens=False).input_ids if i in special]


@check(moved=False)
def template_ends_at_generation(s: Trainer):
    """A chat prompt's ids are those of its messages in the chat template, with the start of the answer.

    Try: encode chat prompts with add_generation_prompt=True, the tools and chat_template_kwargs, once.
    """
    tokenizer, rows = s.models.tokenizer, []
    for row in s.rows:
        turns = row["prompt"]
        if isinstance(turns, str):  # sent as a chat by pages, by scripts with --chat
            turns = [{"role": "user", "content": turns}] if getattr(s.config, "chat", True) else []
        if turns and turns[-1]["role"] != "assistant":
            rows.append((turns, [*row["prompt_ids"]]))
    if not tokenizer.chat_template or not rows:
        return None, "no chat template, or plain prompts: an instruct model needs --chat, or chat messages"
    given = json.loads(getattr(s.config, "chat_template_kwargs", "") or "{}") | {"return_dict": True}
    given["tools"] = [*getattr(s.module, "TOOLS", {}).values()] or None
    for turns, ids in rows:
        expected = tokenizer.apply_chat_template(turns, add_generation_prompt=True, **given)["input_ids"]
        if ids != [*expected]:
            return False, f"prompt ends {tokenizer.decode(ids)[-40:]!r}, expected {tokenizer.decode(expected)[-40:]!r}"
    return True, f"{len(rows)} prompts end where an assistant turn starts: {tokenizer.decode(ids)[-30:]!r}"


INPUT_CHECKS = (special_tokens, template_ends_at_generation)


# ------------------------------------------------- conversation checks (src/programs/selfcheck/conversation_checks.py)

PLAYED = 4  # conversations: two of each of two rows
ANSWERS = (1, 3, 2, 3)  # answers after which the environment ends each conversation
TURNS = 4  # answers that a trainer must allow
ANSWER_TOKENS = 64  # length of an answer that is cut off
NOTED = "selfcheck"  # column with a list to which every reset adds its number


def numbers_in(text: str) -> list[int]:
    """The numbers of conversations that a text names, in order; decoding may add white space."""
    return [int(number) for number in re.findall(r"\[talk(\d)\]", "".join(text.split()))]


class Record:
    """What a trainer does with the conversations of one rollout, by their numbers.

    Args:
        end: the token that ends an answer.
        raised: whether the return of conversation n is n + 1 higher.
    """

    def __init__(self, tokenizer, end: int, raised: bool):
        self.tokenizer, self.raised, self.count = tokenizer, raised, 0
        self.answers = odd_answers(tokenizer, end)
        self.turns, self.heard = defaultdict(list), defaultdict(int)  # [(prompt, ids, log-probs)]; answers heard
        self.faults = []  # what conversations wrongly share

    def answer(self, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
        """(Ids, log-probs) of the scripted answer to each prompt, in place of a sampler."""
        answers = []
        for prompt in prompts:
            numbers = numbers_in(self.tokenizer.decode(prompt))
            number = numbers[0] if numbers else 0
            if strangers := {*numbers} - {number}:
                self.faults.append(f"conversation {number} gets text of conversation {min(strangers)}")
            turns, script = self.turns[number], self.answers[number % PLAYED]
            ids = script[min(len(turns), len(script) - 1)]
            first = 1 + 0.1 * number + 0.01 * len(turns)  # distinct for each answer
            turns.append(([*prompt], [*ids], [-first - 1e-4 * i for i in range(len(ids))]))
            answers.append(turns[-1][1:])
        return answers

    def environment(self) -> type:
        """A class of environments that write this record."""
        record = self

        class Probe:
            """Answers by `reply`; its return depends on its number."""

            def reset(self, **row) -> str:
                notes = row.get(NOTED, [])
                if notes or ("number" in vars(self) and not self.scored):
                    record.faults.append(f"conversation {record.count} shares its row or environment with another")
                notes.append(record.count)
                self.number, self.count, self.scored = record.count, 0, False
                record.count += 1
                return f" [talk {self.number}]"

            def reply(self, text: str) -> str | None:
                record.heard[self.number] += 1
                self.count += 1
                is_over = self.count >= ANSWERS[self.number % PLAYED]
                return None if is_over else f"[talk {self.number}] No, {self.count}."

            def get_reward(self) -> float:
                if self.count < len(record.turns[self.number]):
                    record.faults.append(f"conversation {self.number} is scored before its last answer was heard")
                self.scored = True
                return 0.5 * (self.number % 2) + record.raised * (self.number + 1.0)

        return Probe


def through_a_file(record: Record, load):
    """Load a record's environments by `load`, the trainer's own function, from a file as if they were a user's."""
    sys.modules["selfcheck_environment"] = module = types.ModuleType("selfcheck_environment")
    module.Probe = record.environment()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probe.py"
        file.write_text("from selfcheck_environment import Probe\n")
        return load(f"{file}:Probe")


def odd_answers(tokenizer, end: int) -> list[list[list[int]]]:
    """Answers whose text, if encoded again, gives other ids (if the tokenizer has such); every third is cut off."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    plain, draw = [i for i in range(len(tokenizer)) if i not in special], random.Random(0)

    def answer(cut: bool) -> list[int]:
        for _ in range(100):  # there may be none
            ids = [draw.choice(plain) for _ in range(ANSWER_TOKENS if cut else 5)]
            if tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != ids:
                break
        return ids if cut else [*ids, end]

    return [[answer((number + turn) % 3 == 1) for turn in range(count)] for number, count in enumerate(ANSWERS)]


def played(s: Trainer, raised: bool = False) -> tuple[Record, dict, list[float]]:
    """(Record, batch, scores) of two rows, each passed twice as the same object, as in a group of two completions."""
    tokenizer, ends = s.models.tokenizer, [*s.models.eos_ids]
    end = next((i for i in turn_end(tokenizer) if i in ends), ends[0])  # the template's end of an answer
    record, few = Record(tokenizer, end, raised), copy.deepcopy(s.rows[:2])
    for row in few:
        row["columns"][NOTED] = []
    batch, scores = s.play(record, [row for row in few for _ in range(PLAYED // len(few))])
    if not record.turns:
        raise ValueError("the trainer did not sample with the sampler under test; see --contract")
    if len(scores) != PLAYED:
        raise ValueError(f"{PLAYED} rows gave {len(scores)} conversations")
    return record, batch, scores


@check(moved=False, plays=True)
def turn_mask(s: Trainer):
    """The mask is 1 on exactly the tokens that were sampled, with the sampler's ids and log-probs.

    Try: append the sampled ids to those before them, then the chat template's text between two answers; neither decode
        and encode an answer, nor render the conversation again. Set response_mask to 1 on sampled tokens only, an
        answer's end token included, and to 0 on the prompt, on text of tools and environment, and on the template's
        tokens between answers; rollout_logprobs use the same places.
    """
    record, batch, _ = played(s)
    decode, faults, count = s.models.tokenizer.decode, [], 0
    names = ("attention_mask", "input_ids", "response_mask", "rollout_logprobs")
    for i, (real, *columns) in enumerate(zip(*(batch[name].cpu() for name in names), strict=True)):
        pads = int(columns[1][real == 0].ne(0).sum())
        ids, mask, logprobs = (x[real.bool()].tolist() for x in columns)
        number = next(iter(numbers_in(decode(ids))), None)
        turns = record.turns.get(number, [])
        expected = [pair for _, sampled, figures in turns for pair in zip(sampled, figures, strict=True)]
        trained = [(a, x) for a, x, m in zip(ids, logprobs, mask, strict=True) if m]
        count += len(trained)
        for (_, sampled, _), (prompt, *_) in zip(turns, [*turns[1:], (ids, [], [])], strict=True):
            if not contains(prompt, sampled):
                text = f"{decode(sampled)!r} is not in the next turn's prompt or in the batch as it was sampled"
                faults.append(f"conversation {number}: {text}")
        if pads or [a for a, _ in trained] != [a for a, _ in expected]:
            leaked = decode([a for a, _ in trained])
            text = f"1 on {len(trained)} tokens and {pads} pads, of which {len(expected)} were sampled ({leaked!r})"
            faults.append(f"row {i}, conversation {number}: response_mask is {text}")
        elif any(abs(x - y) > 1e-5 for (_, x), (_, y) in zip(trained, expected, strict=True)):
            faults.append(f"conversation {number}: rollout_logprobs are not the sampler's")
    if faults:
        return False, f"{faults[0]} ({len(faults)} faults)"
    answers = [ids for turns in record.turns.values() for _, ids, _ in turns]
    if len(answers) == PLAYED:
        return None, "no conversation has a second answer: the trainer's limits allow only one"
    return True, f"1 on exactly the {count} tokens of {len(answers)} answers in {PLAYED} conversations"


def contains(ids: list[int], piece: list[int]) -> bool:
    return any(ids[i : i + len(piece)] == piece for i in range(len(ids) - len(piece) + 1))


@check(moved=False, plays=True)
def turn_state(s: Trainer):
    """Each conversation has its own environment, row, replies and return, which changes no other score.

    Try: make an environment and a copy of the row for each conversation; get its return from its own environment, after
        that has heard the last answer; keep scores in the order of the batch.
    """
    record, _, usual = played(s)
    _, batch, raised = played(s, raised=True)
    faults = [*record.faults]
    for number, turns in sorted(record.turns.items()):
        if record.heard[number] != len(turns):
            text = f"heard {record.heard[number]} answers instead of {len(turns)}"
            faults.append(f"the environment of conversation {number} {text}")
    for i, (ids, before, after) in enumerate(zip(batch["input_ids"].tolist(), usual, raised, strict=True)):
        number = next(iter(numbers_in(s.models.tokenizer.decode(ids))), None)
        if number is not None and abs(after - before - number - 1) > 1e-5:
            faults.append(f"score {i} changes by {after - before:g}, the return of its conversation by {number + 1}")
    return not faults, "; ".join(dict.fromkeys(faults)) or f"{PLAYED} environments, rows and returns, none shared"


TURN_CHECKS = (turn_mask, turn_state)


# ----------------------------------------------------------------------- adapters (src/programs/selfcheck/adapters.py)

CONTRACT = """\
What selfcheck.py needs from a trainer; the rest is up to you. Tensors [B, T] are over prompt and response:
x[b, t] is about token t. Masks are 1 = keep.

A page: templates/ppo.py, grpo.py, distillation.py, multi_turn.py, or a copy
  Config
      dataclass of all settings, which transformers.HfArgumentParser reads
  load_models(config) -> models
      models.policy, .tokenizer, .device, .eos_ids, .pad_id; .teacher if Config has teacher; .reference if it has
      kl_coef (None for 0); .critic if it has gae_lambda: its forward returns logits [B, T, 1], the value of the
      text up to t
  load_rows(config, tokenizer, file) -> rows
      row["prompt_ids"] [int], row["columns"] the line, with "prompt"
  load_environment(spec) -> environment
      where Config has environment: what rollout takes; checked with a class that has reset, reply and get_reward
  rollout(config, models, environment, rows) -> (batch, samples, metrics)
      where Config has environment: a conversation for each row, in their order, each with a new object of the
      environment's class; the page's `generate` samples the answers; batch as generate returns it, with scores [B]
  generate(config, models, prompts) -> batch
      prompts: lists of ids; batch: input_ids, attention_mask, response_mask, rollout_logprobs, [B, T] each; prompts
      end, and completions start, in one column; response_mask is 1 on sampled tokens
  token_logprobs(config, network, batch) -> (logprobs, entropy)
      where Config has no teacher: of logits / temperature, [B, T], with gradient
  response_logits(config, network, batch) -> [N, V]
      where Config has teacher: logits / temperature that predict the N tokens of response_mask; token_logprobs (see
      above) also works
  accumulate_gradients(config, models, batch, rows)
      adds the gradients of the loss of one minibatch; rows [n] are its indices, config.micro_batch of them a pass
  make_experience(config, models, batch) -> batch
      where Config has no teacher: takes a batch with scores [B]; adds old_logprobs and advantages, with a reference
      ref_logprobs, with a critic values and returns, [B, T] each
  gae(rewards, values, response_mask, gamma, gae_lambda) -> (advantages, returns)
      where Config has gae_lambda: [B, T] each; tokens outside the mask carry V and A through
  Optional: update(config, models, optimizer, batch, step), which calls policy_loss(logprobs, old_logprobs, ...) for
      a minibatch; of a policy_loss with three parameters, the third advantages, no clip is checked.
  Required fields of Config: model, data, temperature, max_new_tokens, micro_batch; vf_coef if there is gae_lambda
      (a critic).
  Optional fields: seed, chat, chunk, batch_size, prompts, group_size, epochs, minibatches, kl_coef, value_clip,
      max_turns, max_tokens.
  Optional: check_template(models), which ends the program if the chat template rewrites earlier turns; without it,
      rollout must do so.

A script: scripts/ppo_train.py, on_policy_distillation.py, or a copy; their docstrings say what each name takes
  UserError parse_config check_config start_processes settle_precision load_tokenizer load_splits
  load_models check_context batch_rows HFEngine collate make_experience autocast predicting_states token_logprobs
  switch_checkpointing accumulate_gradients
"""
ENTRY = re.compile(r"^  (\w+)(?:\(.*?\))?(?: -> .*)?\n      (?:where Config has (no )?(\w+): )?", re.MULTILINE)
PAGE_NEEDS, SCRIPT_NEEDS = re.split(r"\nA script: .*\n", CONTRACT)
PAGE = ENTRY.findall(PAGE_NEEDS)  # (name, "no " or "", field of Config or "")
SCRIPT = [(name, "", "") for name in SCRIPT_NEEDS.split()]
INSTEAD = {"response_logits": "token_logprobs"}  # {name: another that will do}
DRAWN = 8 * SAMPLED  # rows of which some of the shorter half are taken
FIELDS = ("model", "data", "temperature", "max_new_tokens", "micro_batch")  # of a page's Config
LOSSES_OF_PAPERS = (
    Definition("mean over tokens"),
    Definition("mean over completions of token means", "seq_mean_token_mean"),
    Definition("sum over tokens / max_new_tokens", "seq_mean_token_sum_norm"),
)
ZERO_SUM = ("grpo", "mean", "rloo", "gpg", "gpg_verl", "maxrl")  # the advantages of a group sum to 0


def shorter_rows(drawn) -> list[dict]:
    """SAMPLED rows from the shorter half of DRAWN ones."""
    return sorted(drawn, key=lambda row: len(row["prompt_ids"]))[: DRAWN // 2 : 4]


def lacking(module, needed: list[tuple], fields=()) -> list[str]:
    """Names of the contract that a trainer lacks, given the fields of its Config."""
    asked = [name for name, no, field in needed if not field or (field in fields) != bool(no)]
    return [name for name in asked if not {name, INSTEAD.get(name)} & vars(module).keys()]


class OnePage(Trainer):
    """templates/ppo.py, grpo.py, distillation.py, multi_turn.py and copies."""

    takes_holes = True
    user_errors = (SystemExit,)  # these trainers end with a sentence

    @property
    def fields(self) -> dict:
        config = getattr(self.module, "Config", None)
        return {f.name: f for f in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else {}

    def missing(self) -> list[str]:
        fields = self.fields
        asked = (*FIELDS, "vf_coef") if "gae_lambda" in fields else FIELDS
        names = [f"Config.{name}" for name in asked if fields and name not in fields]
        return lacking(self.module, PAGE, fields) + names

    def parse(self, flags: list[str]) -> None:
        """Read the settings; required ones that are not given get the embedded model, data, reward or environment."""
        words = [word for flag in flags for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
        given = dict(itertools.pairwise([*words, ""]))
        embedded = {"model": EMBEDDED_MODEL, "data": EMBEDDED_DATA, "reward": f"{EMBEDDED_REWARDS}:correctness_reward"}
        embedded["environment"] = f"{EMBEDDED_ENVIRONMENTS}:SecondAttempt"
        embedded["teacher"] = given.get("--model", EMBEDDED_MODEL)  # the student untouched
        required = [name for name, field in self.fields.items() if field.default is dataclasses.MISSING]
        if {"-h", "--help"} & {*flags}:
            required = []
        for name in [x for x in required if f"--{x}" not in given]:
            value = embedded.get(name, "")
            exists = name == "teacher" or Path(value.rpartition(":")[0] or value or "-").exists()
            need(exists, f"got no --{name}; expected the flags of a run; try --{name}")
            flags = [*flags, f"--{name}", value]
        try:
            flags = in_own_words(flags, list(self.fields))
            self.config = transformers.HfArgumentParser(self.module.Config).parse_args_into_dataclasses(flags)[0]
        except ValueError as error:  # unknown flags
            got = f"got {str(error).partition(': ')[2]}"
            raise UserError(f"{got}; expected flags of the trainer; try its --help") from error

    def known(self, **settings) -> dict:
        """The settings that are fields of the page's Config."""
        return {name: value for name, value in settings.items() if name in self.fields}

    def load(self) -> None:
        """Load everything through the trainer, as its `train` does, cut down to a few short sequences."""
        small = {"batch_size": SAMPLED, "max_new_tokens": min(self.config.max_new_tokens, NEW_TOKENS)}
        small |= {"group_size": 2, "prompts": PROBES // 2}
        config = dataclasses.replace(self.config, **self.known(**small, epochs=2, minibatches=1))
        kl_coef = getattr(config, "kl_coef", 0)
        kl = self.known(kl_coef=kl_coef or 0.05)
        self.with_reference = self.module.load_models(dataclasses.replace(config, **kl))
        for name in ("critic", "reference"):
            setattr(self.with_reference, name, getattr(self.with_reference, name, None))
        self.settle_models(kl_coef)
        self.device = torch.device(self.models.device)
        bf16 = self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        bf16 = bf16 or next(self.models.policy.parameters()).dtype != torch.float32
        self.precision = "bf16" if bf16 else "fp32"  # bf16 if the GPU or the weights are
        if self.plays and hasattr(self.module, "check_template"):
            self.module.check_template(self.models)  # it exits if the chat template cannot be used
        rows = self.module.load_rows(config, self.models.tokenizer, config.data)
        random.Random(getattr(config, "seed", 0)).shuffle(rows)
        drawn = itertools.islice(itertools.cycle(rows), DRAWN)
        self.rows = [row | {"prompt": row["columns"]["prompt"]} for row in shorter_rows(drawn)]
        self.config = dataclasses.replace(config, **self.known(batch_size=PROBES))

    def play(self, record: Record, rows: list[dict]):
        limits = self.known(max_turns=TURNS, max_tokens=2**20, max_new_tokens=ANSWER_TOKENS)
        config, generate = dataclasses.replace(self.config, **limits), self.module.generate

        def scripted(config, models, prompts, *settings, **named):
            answers = zip(prompts, record.answer(prompts), strict=True)
            return self.collate([self.sample(prompt, *answer) for prompt, answer in answers])

        environment = through_a_file(record, self.module.load_environment)
        self.module.generate = scripted
        try:
            batch, *_ = self.module.rollout(config, self.models, environment, rows)
        finally:
            self.module.generate = generate
        return batch, batch["scores"].tolist()

    def generated(self, prompts: list[list[int]]):
        torch.manual_seed(0)
        batch, samples = self.module.generate(self.config, self.models, prompts), []
        columns = (batch[name].cpu() for name in ("input_ids", "attention_mask", "rollout_logprobs"))
        for prompt, ids, real, logprobs in zip(prompts, *columns, strict=True):
            ids, logprobs = (x[real.bool()].tolist() for x in (ids, logprobs))
            if ids[: len(prompt)] != [*prompt] or len(ids) == len(prompt):
                raise ValueError("a row of generate() does not begin with its prompt, or has nothing after it")
            samples.append(self.sample(prompt, ids[len(prompt) :], logprobs[len(prompt) :]))
        return samples, batch

    def collate(self, samples: list[dict]) -> dict:
        """Samples as a batch of [B, T] tensors, laid out as `generate` does."""
        return collate(samples, self.models.pad_id, self.device)

    def logprobs(self, batch: dict, **settings):
        config, mask = dataclasses.replace(self.config, **settings), batch["response_mask"].bool()
        with torch.no_grad():
            if hasattr(self.module, "token_logprobs"):
                return self.module.token_logprobs(config, self.models.policy, batch)
            dist = torch.log_softmax(self.module.response_logits(config, self.models.policy, batch), dim=-1)  # [N, V]
            pair = dist.gather(-1, batch["input_ids"][mask][:, None]).squeeze(-1), -(dist.exp() * dist).sum(-1)
            return tuple(x.new_zeros(mask.shape).masked_scatter(mask, x) for x in pair)

    def experience(self, samples: list[dict] | None = None, models=None, **settings) -> dict:
        models, samples = models or self.models, samples or self.probes
        batch = self.collate(samples)
        batch["scores"] = torch.tensor([float(s["score"]) for s in samples], device=self.device)
        # a page stops if sampler and trainer differ
        batch["rollout_logprobs"] = self.logprobs(batch)[0] * batch["response_mask"]
        if "teacher" in self.fields:  # no advantages: it minimises the divergence
            return batch
        kl = self.known(kl_coef=(getattr(self.config, "kl_coef", 0) or 0.05) if models.reference is not None else 0.0)
        return self.module.make_experience(dataclasses.replace(self.config, **(kl | settings)), models, batch)

    def per_pass(self, rows: int) -> dict:
        return {"micro_batch": rows} | self.known(chunk=2 * rows + 1)

    def accumulate(self, config, batch: dict) -> None:
        self.module.accumulate_gradients(config, self.models, batch, torch.arange(PROBES, device=self.device))

    def start_update(self, batch: dict, models, step) -> None:
        groups = [{"params": [p for p in n.parameters() if p.requires_grad]} for n in networks(models)]
        number, optimizer = getattr(self.config, "critic_warmup_steps", 0) + 1, torch.optim.AdamW(groups, lr=0.0)
        optimizer.step = step
        self.module.update(self.config, models, optimizer, batch, number)

    def definitions(self):
        if "teacher" not in self.fields:
            return [dataclasses.replace(d, constant=self.config.max_new_tokens) for d in LOSSES_OF_PAPERS], ""
        teacher = {"kl_coef": 1.0, "teacher": self.models.teacher}
        return [Definition("reverse KL", **teacher), Definition("forward KL", **teacher, beta=0.0)], ""

    def clips(self):
        loss = getattr(self.module, "policy_loss", None)
        if loss and len(inspect.signature(loss).parameters) < 4:
            return [], "policy_loss takes no bound: no clip"
        if {"clip_eps_low", "clip_eps_high"} <= {*self.fields}:
            return ["token", "sequence", "weight_5"], ""
        return [], "no clip_eps_low and clip_eps_high: no clip"

    def group_of(self, samples: list[dict]):
        if "group_size" not in self.fields:
            return [], "advantages are not of groups"
        return [i // self.config.group_size for i in range(len(samples))], ""

    def values_after(self, ids):
        if self.models.critic is None:
            return None
        return self.models.critic(input_ids=ids, attention_mask=ids * 0 + 1).logits[0, :, 0].float()


class ScriptsTrainer(Trainer):
    """scripts/ppo_train.py, scripts/on_policy_distillation.py and copies."""

    def missing(self) -> list[str]:
        return lacking(self.module, SCRIPT)

    def parse(self, flags: list[str]) -> None:
        self.config = self.module.parse_config(flags)

    @property
    def user_errors(self) -> tuple:
        """Exceptions whose text is meant for the user."""
        return (self.module.UserError, SystemExit)

    def load(self) -> None:
        trainer, config = self.module, self.config
        trainer.check_config(config)
        device = self.device = trainer.start_processes(config)
        trainer.settle_precision(config, device)
        if config.precision == "fp16":
            say("note: checked in fp32, without fp16's scaling of gradients")
            config = dataclasses.replace(config, precision="fp32")
        self.precision = config.precision
        tokenizer = trainer.load_tokenizer(config)
        rows, held_out = trainer.load_splits(config, tokenizer)
        small = {"batch_size": SAMPLED, "max_new_tokens": min(config.max_new_tokens, NEW_TOKENS)}
        small["rollout_batch_size"] = 0
        small |= {"minibatches": 1, "ppo_epochs": 2}  # a single step would leave old log-probs to the update
        small |= {"group_size": min(config.group_size, 2)} if hasattr(config, "group_size") else {}
        small |= {"mismatch": "none"} if hasattr(config, "mismatch") else {}  # the probes were not sampled
        penalties = ("missing_eos_penalty", "overlong_share")  # group_advantages knows the scores without them
        small |= {name: 0.0 for name in penalties if hasattr(config, name)}
        small |= {"kl_cov_coef": 0.0} if getattr(config, "loss", "") == "kl_cov" else {}  # |log-ratio| has a kink there
        few = dataclasses.replace(config, **small)
        self.with_reference = trainer.load_models(dataclasses.replace(few, kl_coef=config.kl_coef or 0.05), device)
        trainer.check_context(config, self.with_reference, rows + held_out)
        self.settle_models(config.kl_coef)
        engine = "VllmEngine" if config.rollout_engine == "vllm" else "HFEngine"
        self.engine = getattr(trainer, engine)(few, self.models)
        self.rows = shorter_rows(trainer.batch_rows(rows, few, 0, DRAWN))
        self.config = dataclasses.replace(few, batch_size=PROBES)

    def generated(self, prompts: list[list[int]]):
        noise = np.random.default_rng(0).random((len(prompts), self.config.max_new_tokens))
        pairs = zip(prompts, self.engine.generate(prompts, noise), strict=True)
        samples = [self.sample(prompt, *output) for prompt, output in pairs]
        return samples, self.collate(samples)

    def collate(self, samples: list[dict]) -> dict:
        return self.module.collate(samples, self.models.pad_id, self.device)

    def logprobs(self, batch: dict, **settings):
        config = dataclasses.replace(self.config, **settings)
        with torch.no_grad(), self.module.autocast(config, self.device):
            hidden = self.module.predicting_states(self.models.policy, batch)
            return self.module.token_logprobs(config, self.models.policy, hidden, batch)

    def experience(self, samples: list[dict] | None = None, models=None, **settings) -> dict:
        config = dataclasses.replace(self.config, **settings)
        given = models or self.models, samples or self.probes
        return self.module.make_experience(config, *given, config.kl_coef or 0.05)

    def per_pass(self, rows: int) -> dict:
        settings = {"micro_batch_tokens": rows}  # at 1 each row is a micro-batch
        if hasattr(self.config, "logits_chunk"):
            vocabulary = self.models.policy.get_input_embeddings().weight.shape[0]
            settings |= {"logits_chunk": (2 * rows + 1) * vocabulary, "entropy_coef": self.config.entropy_coef or 0.01}
        return settings

    def accumulate(self, config, batch: dict) -> None:
        self.module.switch_checkpointing(self.models, self.config.gradient_checkpointing)
        scaler = torch.amp.GradScaler(self.models.device.type, enabled=False)
        self.module.accumulate_gradients(config, self.models, batch, list(range(PROBES)), scaler)

    def start_update(self, batch: dict, models, step) -> None:
        optimizer = self.module.make_optimizer(self.config, models)
        optimizer.step, scaler = step, torch.amp.GradScaler(self.device.type, enabled=False)
        number = getattr(self.config, "critic_warmup_steps", 0)
        self.module.update(self.config, models, optimizer, scaler, batch, number)

    def definitions(self):
        config = self.config
        if getattr(config, "loss", "clip") == "clip_cov":
            return [], "Clip-Cov leaves out tokens of its choice"
        if getattr(config, "kl_top_k", 0):
            return [], "the divergence is of chosen tokens"
        how, known = getattr(config, "aggregation", "token_mean"), {"entropy_coef": config.entropy_coef}
        length = config.max_new_tokens if how == "seq_mean_token_sum_norm" else getattr(config, "norm_length", 1)
        objective = getattr(config, "objective", "policy_gradient")
        if objective != "policy_gradient" and hasattr(self.models.teacher, "model"):
            beta, teacher = {"reverse_kl": 1.0, "forward_kl": 0.0}.get(objective, config.beta), self.models.teacher
            known |= {"kl_coef": config.kl_coef, "beta": beta, "teacher": teacher.model, "width": teacher.width}
        return [Definition("", how, length, **known)], ""

    def clips(self):
        loss, known = getattr(self.config, "loss", "clip"), {"clip": "token", "gspo": "sequence", "cispo": "weight"}
        return ([known[loss]], "") if loss in known else ([], f"--loss {loss} has bounds of its own")

    def group_of(self, samples: list[dict]):
        how = getattr(self.config, "advantage", "")
        if hasattr(self.config, "objective") or how not in ZERO_SUM:
            return [], "advantages are not of groups"
        if self.config.group_size < 2:
            return [], "one completion per prompt"
        if self.config.kl_in == "reward" and self.config.kl_coef:
            return [], "the KL in the reward differs within a group"
        return [sample["group"] for sample in samples], ""

    def values_after(self, ids):
        critic = self.models.critic
        if not hasattr(critic, "head"):
            return None
        policy, mask = self.models.policy, ids * 0 + 1
        policy = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
        below = policy.base_model if policy.base_model is not policy else policy.model
        states = (critic.backbone or below)(input_ids=ids, attention_mask=mask).last_hidden_state
        return critic.head(states[0].float()).squeeze(-1)


# ----------------------------------------------------------- numeric checks (src/programs/selfcheck/numeric_checks.py)

# {what is clipped: loss}: a token's ratio, a sequence's (GSPO-token, arXiv 2507.18071, eq. 13), or a constant weight
CLIPS = {"token": "ppo", "sequence": "gspo of each token", "weight": "cispo", "weight_5": CISPO_TRL, "": "reinforce"}
GAMMA, LAMBDA, KL = 0.9, 0.8, 0.3
BOUNDS, MOVES = (0.05, 0.3), (-0.5, -0.1, 0.1, 0.5, 2.0)  # clip_eps_low and _high; log-ratios, 0.1 within one bound
ALL_ROWS = 2**30  # rows per pass that hold any batch
ROUNDING = 1e-4  # nats; log-probs over 150,000 tokens in fp32 differ by 3e-5 between two passes
# response masks with holes in two rows and pads on either side
RESPONSES = (
    (0, 0, 1, 1, 1, 1, 1, 1, 1),
    (0, 0, 0, 1, 0, 0, 1, 1, 0),
    (0, 0, 1, 1, 1, 0, 0, 0, 0),
    (0, 0, 1, 0, 1, 1, 0, 1, 1),
)


def own_ids(s: Trainer, sample: dict):
    """Ids [1, T] of one sequence, without padding."""
    return torch.tensor([sample["prompt_ids"] + sample["response_ids"]], device=s.device)


def own_autocast(s: Trainer):
    return torch.autocast(s.device.type, dtype=torch.bfloat16, enabled=s.precision == "bf16")


def own_dists(s: Trainer, network, sample: dict, width: int | None = None):
    """Log-probs [n, V] over the vocabulary by which a network predicts a sample's n sampled tokens."""
    ids, places = own_ids(s, sample), torch.tensor(sampled_places(sample)).bool()
    with own_autocast(s):
        logits = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]  # [T, V]
    width = width or getattr(network, "known_tokens", None)  # leave out logits of padded rows
    logits = logits[-len(places) - 1 : -1, :width][places]  # entry t - 1 predicts t
    return torch.log_softmax(logits.float() / s.config.temperature, dim=-1)


def own_forward(s: Trainer, sample: dict):
    """(Log-probs, entropies), both [n], of a sample's n sampled tokens."""
    dist, places = own_dists(s, s.models.policy, sample), sampled_places(sample)
    targets = own_ids(s, sample)[0, -len(places) :][dist.new_tensor(places).bool()]
    return dist.gather(-1, targets[:, None]).squeeze(-1), -(dist.exp() * dist).sum(-1)


def own_logprobs(s: Trainer, samples: list[dict] | None = None):
    """Log-probs of all sampled tokens of the samples (the probes, unless given), [tokens]."""
    with torch.no_grad():
        return torch.cat([own_forward(s, sample)[0] for sample in (samples or s.probes)])


def own_values(s: Trainer, sample: dict):
    """Values [n] of the text before each of the n tokens after a prompt; None without a critic."""
    with own_autocast(s):
        values = s.values_after(own_ids(s, sample))
    return None if values is None else values[-len(sample["response_ids"]) - 1 : -1]


def own_surrogate(s: Trainer, logprobs, old_logprobs, advantages, clip: str):
    """The policy loss of a completion, summed over its tokens, with one of CLIPS."""
    c = {"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages}
    c = {name: x[None] for name, x in c.items()} | {"dual_clip": getattr(s.config, "dual_clip", 0.0)}
    c |= {"low": s.config.clip_eps_low, "high": 5.0 if clip == "weight_5" else s.config.clip_eps_high}
    return sum(policy_token(CLIPS[clip], c, 0, t, range(len(logprobs))) for t in range(len(logprobs)))


def own_policy_gradients(s: Trainer, batch: dict, definition: Definition, clip: str) -> list:
    """Gradients of the policy loss by its definition, with the batch's advantages as constants.

    `clip`: one of CLIPS; "" takes the current log-probs as the old ones.
    """
    mask = responses(batch, s.probes)
    for i, sample in enumerate(s.probes):
        logprobs, entropy = own_forward(s, sample)
        loss = own_divergence(s, sample, definition) - definition.entropy_coef * entropy.sum()
        if "advantages" in batch:
            advantages = batch["advantages"][i, mask[i]].detach()
            old = batch["old_logprobs"][i, mask[i]].detach() if clip else logprobs.detach()
            loss = loss + own_surrogate(s, logprobs, old, advantages, clip)
        divisors = {"token_mean": mask.sum(), "seq_mean_token_mean": len(mask) * mask[i].sum()}
        divisors["seq_mean_token_sum"] = len(mask)
        (loss / divisors.get(definition.aggregation, len(mask) * definition.constant)).backward()
    return s.take_gradients()[:1]


def own_divergence(s: Trainer, sample: dict, definition: Definition):
    """Sum over the sampled tokens of kl_coef * divergence from the teacher; 0 without one."""
    if definition.teacher is None:
        return 0.0
    student = own_dists(s, s.models.policy, sample, definition.width)
    with torch.no_grad():
        teacher = own_dists(s, definition.teacher, sample, definition.width)
    width, beta = min(student.shape[-1], teacher.shape[-1]), definition.beta  # either may have padded rows
    student, teacher = (torch.log_softmax(x[:, :width], dim=-1) for x in (student, teacher))
    mixture = (1 - beta) * student.exp() + beta * teacher.exp()
    forward = (teacher.exp() * (teacher - (student if beta == 0 else mixture.log()))).sum()
    reverse = (student.exp() * (student - (teacher if beta == 1 else mixture.log()))).sum()
    parts = {0.0: forward, 1.0: reverse}.get(beta, beta * forward + (1 - beta) * reverse)
    return definition.kl_coef * parts


def own_value_gradients(s: Trainer, batch: dict, value_clip: float, vf_coef: float) -> list:
    """Gradients of the critic for vf_coef * mean of 1/2 max((V - R)^2, (V_old + clip(V - V_old) - R)^2).

    V comes from the plain critic; mask, old values and returns from the batch.
    """
    way, count = "clipped half squared error" if value_clip else "half squared error", batch["response_mask"].sum()
    for i, columns in enumerate(responses(batch, s.probes, whole=True)):
        old, returns, mask = (batch[name][i, columns][None] for name in ("values", "returns", "response_mask"))
        c = {"values": own_values(s, s.probes[i])[None], "old_values": old, "returns": returns}
        loss = sum(value_token(way, c | {"value_clip": value_clip}, 0, t) for t in mask[0].nonzero().flatten())
        (vf_coef * loss / count).backward()
    return s.take_gradients()[1:]


@check(moved=False)
def gae_formula(s: Trainer):
    """The trainer's gae gives the paper's sum over ragged rows with pads and holes.

    Try: A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, where t + 1 is the next sampled
        token: carry V and A past tokens outside the mask, begin with 0 after the last, and give advantages + values as
        returns.
    """
    if not hasattr(s.module, "gae"):
        return None, "no critic: no gae"
    mask = torch.tensor(RESPONSES)
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(mask.shape, generator=generator) * mask for _ in range(2))
    advantages, returns = s.module.gae(rewards, values, mask, GAMMA, LAMBDA)
    expected, at = own_gae(rewards, values, mask, GAMMA, LAMBDA), mask.bool()
    gaps = [(a - b)[at].abs().max().item() for a, b in ((advantages, expected), (returns, expected + values))]
    text = f"advantages {gaps[0]:.1e} and returns {gaps[1]:.1e} from the formula, gamma {GAMMA}, lambda {LAMBDA}"
    return largest(gaps) <= 1e-4, f"{text}, {int(at.sum())} tokens, {len(mask)} rows, holes in two"


@check()
def experience_formula(s: Trainer):
    """A critic's returns and advantages are those of the scores, the KL to the reference, and the batch's values.

    Try: rewards = -kl_coef * (old_logprobs - ref_logprobs) on sampled tokens, plus the score at the last of them;
        returns of gae's plain advantages; whiten these over the sampled tokens alone.
    """
    names = {"ref_logprobs", "values", "advantages", "returns"}
    settings = all(hasattr(s.config, name) for name in ("gamma", "gae_lambda", "kl_coef"))
    if hasattr(s.config, "advantage") or not hasattr(s.module, "gae") or not settings:
        return None, "no critic, or an estimator with settings of its own"
    batch = s.experience(models=s.with_reference, gamma=GAMMA, gae_lambda=LAMBDA, kl_coef=KL)
    if not names <= {*batch}:
        return None, f"no {', '.join(sorted(names - {*batch}))} in the batch"
    mask, batch = responses(batch, s.probes), {name: batch[name].detach().double() for name in names}
    rewards = batch["values"] * 0
    rewards[mask] = -KL * (s.response_logprobs(s.probes).double() - batch["ref_logprobs"][mask])
    for row, places, probe in zip(rewards, mask, s.probes, strict=True):
        row[places.nonzero()[-1]] += probe["score"]
    gaps, values = [], batch["values"]
    for gae_lambda in (LAMBDA, 1.0):  # at lambda 1: Monte Carlo
        plain = own_gae(rewards, values, mask, GAMMA, gae_lambda)[mask]
        ways = (plain, *((plain - plain.mean()) / plain.std(correction=i) for i in (0, 1)))
        got = ((batch["returns"] - values)[mask] - plain, *[batch["advantages"][mask] - x for x in ways])
        first, *others = (largest([x.abs().max().item()]) for x in got)
        gaps.append((max(first, min(others)), first, min(others)))
    gap, *parts = min(gaps)
    return gap <= 1e-3, "returns {:.1e} and advantages {:.1e} from the formula, kl_coef {}".format(*parts, KL)


@check()
def value_loss_gradient(s: Trainer):
    """The critic's gradient is that of the definition, even where the clip acts and in a response with a hole.

    Try: train the critic by vf_coef * the mean over all tokens of the mask of 1/2 max((V - R)^2, (V_old + clip(V -
        V_old, -value_clip, value_clip) - R)^2), V of the text before each token.
    """
    with torch.no_grad():
        if own_values(s, s.probes[0]) is None:
            return None, "no critic"
    coefficient, clip = s.config.vf_coef or 0.5, getattr(s.config, "value_clip", 0.0)
    batch = with_values(s, clip or 0.2)
    got = s.gradients(batch, vf_coef=coefficient)[1:]
    gap, ratio = apart(got, own_value_gradients(s, batch, clip, coefficient))
    text = f"trainer's and defined gradient of the critic {gap:.1e} apart, {ratio:.4g} times as long"
    return gap <= s.limits[1], text


def with_values(s: Trainer, clip: float) -> dict:
    """The trainer's batch with a hole in a response, and old values and returns on both sides of the clip."""
    batch = {name: x.clone() for name, x in s.settled().items()}
    places = responses(batch, s.probes, whole=True)
    hole = places[0].nonzero()[1].item()
    for name in {"response_mask", "loss_mask"} & {*batch}:
        batch[name][0, hole] = 0
    with torch.no_grad():
        values = torch.cat([own_values(s, probe) for probe in s.probes])
    moves, errors = (-3.0, -0.5, 0.5, 3.0), (1.5, -1.5, 0.3, -0.3, 2.5)  # times the clip; the max is never near a tie
    for name, steps, sign in (("values", moves, -1), ("returns", errors, 1)):
        repeated = torch.tensor(steps, device=values.device).repeat(len(values))[: len(values)]
        batch[name][places] = (values + sign * clip * repeated).to(batch[name])
    return batch


@check(moved=False)
def group_advantages(s: Trainer):
    """A group's advantages are its scores minus their mean, scaled as in some paper, and 0 if all scores are equal.

    Try: subtract from each score the mean of its own group, whose completions are neighbours in the batch; divide by
        nothing, or by the standard deviation or the mean of the group.
    """
    groups, reason = s.group_of(s.probes)
    if not groups:
        return None, reason
    equal = [sample | {"score": 1.0, "rewards": {"probe": 1.0}} for sample in s.probes]
    usual, flat = (
        [row[places][0].item() for row, places in zip(batch["advantages"], responses(batch, s.probes), strict=True)]
        for batch in (s.experience(), s.experience(equal))
    )
    scores, factors = [sample["score"] for sample in s.probes], []  # by which centred scores are multiplied
    for group in {*groups}:
        members = [i for i, g in enumerate(groups) if g == group]
        deviation, mean = (f([scores[i] for i in members]) for f in (statistics.pstdev, statistics.fmean))
        scales = [usual[i] / (scores[i] - mean) for i in members]
        factors += [(x, x * deviation, x * mean) for x in scales]
    alike = min(largest(x) / min(x) - 1 if min(x) > 0 else math.inf for x in zip(*factors, strict=True))
    text, none = ", ".join(f"{x:.3g}" for x, *_ in factors), largest(map(abs, flat))
    return alike <= 1e-2 and none <= 1e-3, f"centred scores times {text}; of equal scores {none:.1e}"


@check()
def reference_is_initial(s: Trainer):
    """The reference gives the untouched policy's log-probs, while the policy has moved.

    Try: load the reference from --model and freeze it; with LoRA use the base with its adapters off.
    """
    if s.models.reference is None:
        return None, "no reference: kl_coef is 0, or there is none"
    batch = s.experience()
    passed, text = agree(batch["ref_logprobs"][responses(batch, s.probes)], s.initial, s.limits[0])
    return passed, f"reference and untouched policy {text}; the policy moved by {s.moved:.2g}"


@check()
def first_update_ratio(s: Trainer):
    """At the first optimizer step of an update the old policy is the current one, not the reference.

    Try: compute old_logprobs with the policy itself, before the first optimizer step, dropout off, same temperature.
    """
    with_reference, peaks = s.with_reference, []
    for models in [with_reference] if s.models.reference is not None else [with_reference, s.models]:
        batch = s.experience(s.probes, models)
        if "old_logprobs" not in batch:
            return None, "the divergence from a teacher has no old policy"
        old = batch["old_logprobs"][responses(batch, s.probes)]
        peaks.append((s.response_logprobs(s.probes) - old).abs().max().item())
        inputs = s.first_loss({name: x.detach() for name, x in batch.items()}, models)
        if inputs == ():
            return False, "update() never called the policy loss"
        if inputs:
            peaks.append((inputs[0] - inputs[1]).abs().max().item())
    peak = largest(peaks)
    text = f"largest |log ratio| {peak:.1e}; policy and reference are {s.moved:.2g} nats apart"
    return peak <= max(s.limits[0] / 10, ROUNDING), text


@check()
def sampler_agreement(s: Trainer):
    """The sampler's log-probs are the trainer's, and no token follows an end token.

    Try: divide the sampler's logits by the same temperature, without top-p or top-k, and copy weights before sampling;
        end a completion at each of eos_ids.
    """
    samples, batch = s.generated([row["prompt_ids"] for row in s.rows])
    mask = responses(batch, samples)
    ours = s.response_logprobs(samples, batch | {"response_mask": mask.long()})
    passed, text = agree(batch["rollout_logprobs"][mask], ours, s.limits[0])
    late = sum(bool({*sample["response_ids"][:-1]} & {*s.models.eos_ids}) for sample in samples)
    text = f"sampler and trainer {text}, temperature {s.config.temperature:g}, {len(ours)} tokens"
    return passed and not late, text + f"; {late} completions go on after an end token" * bool(late)


@check()
def logprob_shift(s: Trainer):
    """The trainer's log-prob of token t is that of the plain model.

    Try: take the log-prob of token t from the logits at t - 1, divided by the temperature.
    """
    expected = own_logprobs(s) if s.moved else s.initial
    passed, text = agree(s.response_logprobs(s.probes), expected, s.limits[0])
    return passed, f"trainer and model {text}, {len(expected)} tokens"


@check()
def padding(s: Trainer):
    """Neither the side nor the amount of padding changes log-probs.

    Try: pad prompts on the left, mask the pads, and count positions over real tokens only.
    """
    for mask in s.generated(prompts_of(s))[1]["attention_mask"]:
        real = mask.nonzero().squeeze(-1)
        if real[-1] - real[0] + 1 != len(real):
            return False, "pads stand between a prompt and its response"
    batch = s.collate(s.probes)
    names, fill = ("input_ids", "attention_mask", "response_mask"), {"input_ids": s.models.pad_id}
    wide = {name: torch.nn.functional.pad(batch[name], (5, 3), value=fill.get(name, 0)) for name in names}
    alone = torch.cat([s.response_logprobs([probe]) for probe in s.probes])
    results = {
        "in a batch": agree(s.response_logprobs(s.probes), alone, s.limits[0]),
        "with more pads": agree(s.response_logprobs(s.probes, wide), alone, s.limits[0]),
    }
    pieces = [s.experience(**s.per_pass(n)) for n in (1, ALL_ROWS)]  # scripts trim the padding of these
    pieces = [x["old_logprobs"].detach()[responses(x, s.probes)] for x in pieces if "old_logprobs" in x]
    if pieces:
        results["in micro-batches"] = agree(*pieces, s.limits[0])
    bad = [f"{name} log-probs are {text}" for name, (passed, text) in results.items() if not passed]
    return not bad, "; ".join(bad) or f"log-probs {results['with more pads'][1]}"


def prompts_of(s: Trainer) -> list[list[int]]:
    return [probe["prompt_ids"] for probe in s.probes]


@check()
def accumulation(s: Trainer):
    """Gradients depend neither on the micro-batches nor on the pieces in which the output layer sees tokens.

    Try: divide every micro-batch by the tokens and completions of the whole minibatch, not by its own; give every piece
        of chunked log-probs its own rows and targets, and add up the gradients of all pieces.
    """
    batch = s.settled()
    gap, _ = apart(*(s.gradients(batch, **s.per_pass(rows)) for rows in (1, ALL_ROWS)))
    return gap <= s.limits[1], f"1 and {len(s.probes)} rows per micro-batch: gradients {gap:.1e} apart"


@check()
def update_steps(s: Trainer):
    """Each optimizer step of `update` gets the gradient of its own minibatch alone.

    Try: optimizer.zero_grad() after each step, and a step for every minibatch of every epoch.
    """
    if not hasattr(s.module, "update"):
        return None, "no update()"
    steps = s.steps_of_update()
    if len(steps) < 2:
        return False, f"{len(steps)} optimizer steps in two updates"
    gap = largest(apart(step, steps[0])[0] for step in steps[1:])
    return gap <= s.limits[1], f"{len(steps)} steps on one batch, weights unchanged: gradients {gap:.1e} apart"


@check()
def advantages_detached(s: Trainer):
    """The experience carries no gradient, and the policy gradient is that of the definition.

    Try: compute the experience under torch.no_grad() and give the policy loss constant advantages; a loss that
        deliberately differs from those of the papers fails here too.
    """
    graphs = {name for name, x in s.experience().items() if x.requires_grad}
    if graphs:
        return False, f"gradients flow through {', '.join(sorted(graphs))}"
    if not s.definitions()[0]:
        return None, s.definitions()[1]
    worst, ratio, definition, _ = nearest(s, s.settled(), s.definitions()[0])
    text = f"trainer's and defined policy gradient {worst:.1e} apart, {ratio:.4g} times as long"
    return worst <= s.limits[1], text + (f" ({definition.name})" if definition.name else "")


def nearest(s: Trainer, batch: dict, definitions: list, clips=("",)) -> tuple:
    """(Relative difference, ratio of norms, definition, clip) of the definition nearest to the trainer's gradient."""
    gradients = s.gradients(batch, **({"vf_coef": 0.0} if hasattr(s.config, "vf_coef") else {}))[:1]
    comparisons = []
    for clip, d in itertools.product(clips, definitions):
        comparisons.append((*apart(gradients, own_policy_gradients(s, batch, d, clip)), d, clip))
        if comparisons[-1][0] <= s.limits[1]:
            break
    return min(comparisons, key=lambda comparison: comparison[0])


@check()
def policy_clip(s: Trainer):
    """Off the old policy, the policy gradient is that of the clipped loss.

    Try: max(-A ratio, -A clip(ratio, 1 - clip_eps_low, 1 + clip_eps_high)), ratio = exp(logprobs - old_logprobs); a
        loss that deliberately differs fails here too: leave it out by --leave_out policy_clip.
    """
    definitions, reason = s.definitions()
    clips, reason = s.clips() if definitions else ([], reason)
    batch = s.settled()
    if not clips or not {"advantages", "old_logprobs"} <= {*batch}:
        return None, reason or "no advantages or old log-probs"
    worst, _, definition, _ = nearest(s, batch, definitions)
    if worst > s.limits[1]:
        return None, "without a clip the gradient is none of the definitions' either"
    usual, s.config = s.config, dataclasses.replace(s.config, clip_eps_low=BOUNDS[0], clip_eps_high=BOUNDS[1])
    try:
        worst, ratio, _, clip = nearest(s, off_policy(s, batch), [definition], clips)
    finally:
        s.config = usual
    text = f"trainer's and defined policy gradient {worst:.1e} apart, {ratio:.4g} times as long"
    return worst <= s.limits[1], f"{text}: clip of the {clip}, clip_eps {BOUNDS}, old log-probs {MOVES} away"


def off_policy(s: Trainer, batch: dict) -> dict:
    """The batch with old log-probs on all sides of the clip, and advantages of both signs."""
    places, generator = responses(batch, s.probes), torch.Generator().manual_seed(0)
    batch = batch | {name: batch[name].clone() for name in ("advantages", "old_logprobs")}
    count = int(places.sum())
    moves = torch.tensor(MOVES)[torch.randint(len(MOVES), (count,), generator=generator)]
    signs = torch.randint(2, (count,), generator=generator) * 2.0 - 1
    batch["old_logprobs"][places] -= moves.to(batch["old_logprobs"])
    batch["advantages"][places] = (signs * (0.5 + torch.rand(count, generator=generator))).to(batch["advantages"])
    return batch


@check()
def prompt_gradient(s: Trainer):
    """Neither prompt nor pad tokens enter the loss.

    Try: let response_mask be 1 on sampled tokens only, and multiply every per-token loss by it.
    """
    batch = s.settled()
    samples, laid_out = s.generated(prompts_of(s))
    wrong, count = int((laid_out["response_mask"] != responses(laid_out, samples)).sum()), laid_out["input_ids"].numel()
    mask, real = responses(batch, s.probes), batch["attention_mask"].bool()
    per_token = {name for name, x in batch.items() if x.is_floating_point() and x.shape == mask.shape}
    spoilt = {name: x + 3.0 * ~mask if name in per_token else x for name, x in batch.items()}
    spoilt["input_ids"] = batch["input_ids"].where(real, batch["input_ids"].new_tensor(s.probes[0]["prompt_ids"][-1]))
    gap, _ = apart(s.gradients(spoilt), s.gradients(batch))
    text = f"response_mask wrong at {wrong} of {count} tokens; gradients {gap:.1e} apart with spoilt prompts and pads"
    return not wrong and gap <= s.limits[1], text


NUMERIC_CHECKS = (
    gae_formula,
    experience_formula,
    value_loss_gradient,
    group_advantages,
    reference_is_initial,
    first_update_ratio,
    sampler_agreement,
    logprob_shift,
    padding,
    accumulation,
    update_steps,
    advantages_detached,
    policy_clip,
    prompt_gradient,
)


# --------------------------------------------------------------------------------- run (src/programs/selfcheck/run.py)

PROBE_TOKENS = 64  # of a real prompt that a probe is cut from
CHECKS = (*INPUT_CHECKS, *NUMERIC_CHECKS, *TURN_CHECKS)


def load_trainer(file: str) -> Trainer:
    """Load a trainer's file; UserError if it cannot be loaded or lacks a name of the contract."""
    path = Path(file)
    need(
        path.suffix == ".py" and path.is_file(),
        f"got trainer {file!r}, which is not a Python file; expected TRAINER.py first, then its flags; "
        f"try {in_bundle('scripts/ppo_train.py')}",
    )
    sys.dont_write_bytecode = True  # no __pycache__ beside the trainer or the reward file
    module = import_file("trainer", file, file)
    kind = ScriptsTrainer if {"HFEngine", "settle_precision"} & vars(module).keys() else OnePage
    trainer, source = kind(module), path.read_text(encoding="utf-8")
    names = trainer.missing()
    need(
        not names or not re.search(r"^\s*from trl\b.*Trainer\b", source, re.MULTILINE),
        f"got trainer {file!r}, which leaves the training to TRL; expected one in plain PyTorch, whose own functions "
        f"can be called; try {in_bundle('templates/grpo.py')}",
    )
    need(
        not names,
        f"got trainer {file!r} without {', '.join(names)}; expected all that the checks call; try selfcheck.py "
        "--contract, or a copy of templates/grpo.py beside it and `from grpo import *` before your own functions",
    )
    return trainer


def prepare(s: Trainer) -> None:
    """Load everything through the trainer, and make the probes.

    Raises:
        UserError: the checks cannot start.
    """
    try:
        s.load()
        s.probes = make_probes(s.rows, s.takes_holes)
        s.initial = own_logprobs(s)
    except s.user_errors as error:
        raise UserError(str(error).removeprefix("error: ")) from error
    except Exception as error:
        raise UserError(f"got {type(error).__name__} before the first check: {' '.join(str(error).split())}") from error


def make_probes(rows: list[dict], holes: bool) -> list[dict]:
    """Samples cut from real prompts, all different: prompts get longer, responses shorter.

    With `holes`, the second response has a token that was not sampled, as if from a tool.
    """
    probes = []
    for i, row in enumerate(rows[:PROBES]):
        ids = list(row["prompt_ids"])[-PROBE_TOKENS:]
        endless = ids * (2 * PROBES + 4)
        sample = {"prompt": row["prompt"], "prompt_ids": endless[: len(ids) + 2 * i], "completion": ""}
        response = endless[1 : 4 + 2 * (PROBES - i)]
        sample |= {"response_ids": response, "rollout_logprobs": [0.0] * len(response), "finished": True}
        sample["response_mask"] = [int(not (holes and i == 1 and j == 2)) for j in range(len(response))]
        score = 1.6 + (1.5 - 0.5 * (i // 2)) * (-1) ** i + 0.1 * i  # distinct, positive; groups differ in spread
        sample |= {"rewards": {"probe": score}, "weights": {"probe": 1.0}, "group": i // 2, "baseline": 0.0}
        probes.append(sample | {"score": score})
    return probes


def move(s: Trainer) -> None:
    """Add noise to the trained weights, in memory, until the policy differs clearly from the untouched one."""
    scale, enough = 0.01, max(0.05, 3 * s.limits[0])  # nats per token
    for attempt in range(8):
        generator = torch.Generator(s.device).manual_seed(attempt)
        with torch.no_grad():
            for p in (p for network in networks(s.models) for p in network.parameters() if p.requires_grad):
                size = p.abs().mean().item() or 1.0  # LoRA's B and the value head are 0
                noise = torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype)
                p.add_(noise, alpha=scale * size)
        s.moved = (own_logprobs(s) - s.initial).abs().mean().item()
        if s.moved >= enough:
            break
        scale *= 2
    if s.engine:
        s.engine.sync()


def selfcheck(file: str, flags: list[str], left_out: list[str]) -> list[dict]:
    """Load a trainer with its flags and run the checks; UserError if they cannot start."""
    known = [function.__name__ for function in CHECKS]
    for name in left_out:
        need(name in known, f"got --leave_out {name}; expected one of {', '.join(known)}{suggest(name, known)}")
    gone = "got --partial, which was removed; expected all of --contract; try `from grpo import *` of a template's copy"
    need("--partial" not in flags, gone)
    trainer = load_trainer(file)
    trainer.parse(flags)
    prepare(trainer)
    return [result_of(trainer, function, left_out) for function in CHECKS]


def result_of(s: Trainer, function, left_out: list[str]) -> dict:
    """Run a check and report it on stderr; if it raises or exits, it fails with the exception's text."""
    started, name = time.perf_counter(), function.__name__
    try:
        if function.moved and not s.moved:
            move(s)
        idle = "left out, by --leave_out" if name in left_out else ""
        if function.plays and not (s.plays and hasattr(s, "play")):
            idle = "of pages with an environment" if s.plays else "one answer a prompt: no environment"
        passed, text = (None, idle) if idle else function(s)
    except (Exception, SystemExit) as error:
        rest(s.models)
        kind = "" if isinstance(error, SystemExit) else f"{type(error).__name__}: "
        passed, text = False, kind + str(error).removeprefix("error: ")
    status = "n/a" if passed is None else "pass" if passed else "FAIL"
    say(f"selfcheck: {name:<28} {status:<5} {time.perf_counter() - started:5.1f} s")
    advice = function.advice if status == "FAIL" else ""
    return {"name": name, "status": status, "measured": " ".join(text.split())[:400], "try": advice}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        usage="selfcheck.py [-h] [--contract] TRAINER.py [the trainer's flags] [--leave_out NAME] [--json]",
        description=__doc__,
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("trainer", metavar="TRAINER.py", nargs="?", help="the script to check; its flags follow")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    text = "checks that do not fit your method, such as group_advantages for a baseline that is not the group's mean"
    parser.add_argument("--leave_out", "--leave-out", nargs="+", default=[], metavar="NAME", help=text)
    parser.add_argument("--contract", action="store_true", help="print what a trainer must offer, and stop")
    options, flags = parser.parse_known_args(argv)
    if options.contract:
        tell(CONTRACT.rstrip())
        return 0
    if not options.trainer:
        parser.error(f"got no TRAINER.py; expected it first, then its flags; try {in_bundle('templates/ppo.py')}")
    quiet_environment()
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a reward function may print
            results = selfcheck(options.trainer, flags, options.leave_out)
    except UserError as error:
        say(f"error: {error}")
        return error.code
    seconds, passed = time.perf_counter() - started, all(row["status"] != "FAIL" for row in results)
    if options.json:
        report = {"trainer": options.trainer, "passed": passed, "seconds": round(seconds, 1), "checks": results}
        tell(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        for row in results:
            advice = f" | try: {row['try']}" if row["try"] else ""
            tell(f"{row['name']:<28} {row['status']:<5} {row['measured']}{advice}")
        counts = [f"{sum(row['status'] == status for row in results)} {status}" for status in ("pass", "FAIL", "n/a")]
        tell(f"{', '.join(counts)} in {seconds:.1f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
