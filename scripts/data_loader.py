#!/usr/bin/env python3
# Built from src/programs/data_loader/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6", "transformers>=5.23,<6", "datasets", "pyarrow", "tqdm",
# ]
# ///
"""Read training data of any common form, check it row by row, and write it in the shape a trainer wants.

Prompts, conversations, prompt + response, preferences, math, choices and code, from JSONL, JSON, TXT, CSV, TSV and
parquet (.gz too), folders, globs, stdin and the hub, become one schema: `prompt` (messages), `answer`,
`tests`, `completion`, `chosen`, `rejected`, `source`, `id`; other columns stay unchanged. Errors name the file, line
and field of a row that does not fit. references/data_formats.md describes schema, formats and targets.

As a library: `load_rows`, `normalise`, `write_rows`, `create_dataloader`.

Deliberately left out: images and audio, tokenised data sets, packing, and any cleaning of texts. Code in the data is
parsed, never run; paths and URLs in the data are never opened; nothing is unpickled.

    python scripts/data_loader.py train.jsonl --out clean.jsonl                       # any known form, detected
    python scripts/data_loader.py train.jsonl test.csv --inspect --tokenizer MODEL    # lengths, duplicates, overlap
    python scripts/data_loader.py train.jsonl --split 0.1 --seed 0 --out part.jsonl    # and part.eval.jsonl
    python scripts/data_loader.py "data/*.jsonl.gz" --for verl --shuffle 0 --split eval=200 --out train.parquet

Exit codes: 0 done, 1 --validate or --inspect found bad rows, 2 bad input (nothing is written).
"""

# Contents
#       101-112  python source      Parses Python source in a process with threads
#       115-163  messages           Errors that a user can fix, each with an exit code; messages on stderr; the …
#       166-174  bundle             Paths of this bundle and of its embedded model, data and rewards; loading its …
#       177-373  dialect            Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and …
#       376-396  settings           Settings: dataclasses whose fields are flags and YAML keys, and the checks that …
#       399-417  processes          The processes of a run: lazy torch, device, threads, sums, distribution of rows, …
#       420-657  data files         Open data files as text: decompress, decode, refuse files without data; parse CSV …
#       660-796  nested rows        Find rows inside other JSON: an object with a list of rows, columns instead of …
#       799-999  rows               Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their prompts
#     1002-1141  stated answers     Find where a text states its final answer, by marks and phrases in 20 languages, …
#     1144-1310  answer marks       Extract the final answer of a worked solution: marked by `#### 42`, `\boxed` or …
#     1313-1659  question parts     Detect columns that look like part of the question but are not in the prompt, and …
#     1662-1748  chat               Chat templates: their settings, rendering messages, and prompts that bypass a …
#     1751-1790  held out           Held-out prompts: split them off, and count or refuse those that also occur in …
#     1793-1815  prompts            Load training and held-out prompts as token ids
#     1818-1836  verl layout        verl's row layout: the ground truth in reward_model, all other columns in extra_info
#     1839-1871  whole models       Refuse what transformers would make a model of by guessing: missing weights, …
#     1874-1942  adapters           LoRA adapters: where their base and tokenizer are, loading, merging, saving
#     1945-1964  tokenizers         Tokenizers: loading and saving, the tokens that end a completion, the rows that …
#     1967-1975  batches            Batches: masked statistics, padding, micro-batches, and packed layouts that hold …
#     1978-2112  bad rows           Names of columns, errors about bad rows, and the values that a row may hold
#     2115-2397  messages           Chat messages, passages that a question is about, and media, which are refused
#     2400-2674  tests of programs  Read tests of programs in all published forms, for the sandbox; nothing is run
#     2677-2792  answers            Read reference answers: bare ones, those that a worked solution marks, and lists …
#     2795-3038  choices            Questions with choices: find the choices of a row, and which one is right
#     3041-3415  forms              Convert rows of each form to the schema
#     3418-3534  form names         Tell a row's form by the names of its fields, and convert it
#     3537-3722  writing            Write rows for each target, and choose held-out rows
#     3725-4025  row reader         Read rows from files, globs and the hub; convert, check and count them
#     4028-4064  batches            Batches of prompts for torch's DataLoader, padded on the left
#     4067-4306  command            The command line, and what --inspect shows

import argparse
import ast
import builtins
import codecs
import contextlib
import csv
import datetime
import decimal
import difflib
import functools
import glob
import gzip
import hashlib
import importlib
import io
import itertools
import json
import keyword
import math
import numbers
import os
import random
import re
import reprlib
import shlex
import shutil
import ssl
import string
import sys
import unicodedata
import urllib.error
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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


# ------------------------------------------------------------------------- settings (src/parts/foundation/settings.py)


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
# the start of a turn in one-text dialogues: HH-RLHF, Guanaco and Alpaca, ChatML, Gemma, Phi, DeepSeek, Llama 3 and 2
SPEAKER = re.compile(
    r"(?:\A|\n\n)(Human|Assistant): ?|### ?(Human|User|Assistant|System|Instruction|Input|Response): ?"
    r"|<(?:\|im_start\||start_of_turn)>(\w+)\n|(?:(?<![^\n>])<\||<｜)(?i:(user|assistant|system))[|｜]>"
    r"|<\|start_header_id\|>(\w+)<\|end_header_id\|>|(\[/?INST\])|(?:\A|\n)(USER|ASSISTANT): "
)
DIALOGUE = re.compile(r"\s*(user|human)\s*:.+?\s(assistant|ai)\s*:\s*\S", re.IGNORECASE | re.DOTALL)
TURN_ENDS = re.compile(r"</?s>|<\|(im_end|eot_id|endoftext|begin_of_text|end)\|>|<(bos|end_of_turn)>|<｜[^｜]*｜>")
# the end of an answer that is only begun
BEGUN = re.compile(r"(<think>|\blet(['’]s| me| us)\b[^.:\n]{0,40} step by step[.:]?)\s*\Z", re.IGNORECASE)
ANSWERERS = ("assistant", "model", "response", "[/inst]")
VISIBLE = re.compile(r"[^\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")  # a visible character
TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant): ?")
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


def holds_answer(text) -> bool:
    """Whether a value is a dialogue in one text that ends with an answer, such as `### Human: … ### Assistant: …`."""
    lower = text.lower() if isinstance(text, str) else ""
    marks = list(SPEAKER.finditer(text)) if any(word in lower for word in ANSWERERS) else []
    if len(marks) < 2 or BEGUN.search(text[-200:]):
        return False
    first, last = (next(filter(None, mark.groups())).lower() for mark in (marks[0], marks[-1]))
    preface = TURN_ENDS.sub("", text[: marks[0].start()]).strip()
    begins = first not in ANSWERERS and (not preface or preface.startswith("Below is an instruction"))  # Alpaca's
    return begins and last in ANSWERERS and TURN_ENDS.sub("", text[marks[-1].end() :]).strip() != ""


def turns_in(text: str) -> list[dict] | None:
    """The messages of an HH-RLHF dialogue, `\\n\\nHuman: … \\n\\nAssistant: …`; None for other texts."""
    above, *pieces = TURN.split(text)
    if above.strip() or "Assistant" not in pieces[::2] or pieces[0] == "Assistant":
        return None
    turns = []
    for speaker, content in zip(pieces[::2], pieces[1::2], strict=True):
        role = "user" if speaker == "Human" else "assistant"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += f"\n\n{content.strip()}"
        else:
            turns.append({"role": role, "content": content.strip()})
    return turns


# --------------------------------------------------------------------------------------- rows (src/parts/data/rows.py)

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
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
_COMMA = re.compile(
    r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+(?=[,{])|0(?=[,{])|\d+(?=(?:,|\{,\})(?!\d{3}(?!\d))))(?:,|\{,\})(\d+)(?![.,]?\d)"
)
# unambiguous digit groups: 1.234.567, 12'500, 1_000; decimal commas that such groups or a currency sign reveal
_GROUPED = re.compile(
    r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?(?![.,]?\d)|(?<![\w.])\d{1,3}(?:['’_]\d{3})+(?!\w)"
    r"|(?<=€)\s?\d+(?:\.\d{3})*,\d\d?(?![.,]?\d)|(?<![\d.,])\d+(?:\.\d{3})*,\d\d?(?=\s?(?:€|EUR\b))"
)
_LAKHS = re.compile(r"(?<![\d.,])[1-9]\d?(?:,\d\d)+,\d{3}(?![,\d])")  # Indian digit groups: 1,00,000


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


def visible(text: str) -> str:
    """The text after `</think>`; "" if thinking has not ended."""
    text = text.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def ungrouped(text: str) -> str:
    """Remove digit group separators where they are unambiguous; 1.234 stays, as a decimal.

    >>> ungrouped("1.234.567"), ungrouped("12'500"), ungrouped("1.234,50 €"), ungrouped("€1.200")
    ('1234567', '12500', '1234.50 €', '€1.200')
    """
    return _GROUPED.sub(lambda m: re.sub("[.'’_]", "", m[0]).replace(",", "."), text)


def with_point(text: str) -> str:
    """Replace decimal commas by points (3,5; 1.234,56; 0,125); commas in 1,234 and 1,00,234 group digits."""
    text = _LAKHS.sub(lambda m: m[0].replace(",", ""), ungrouped(text))
    return _COMMA.sub(lambda m: f"{m[1].replace('.', '')}.{m[2]}", text)


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


def marked_gold(text: str) -> str:
    """The gold answer in a solution: the text after its last `####` (no heading), a stated answer, or all of it."""
    text = text.rpartition("</think>")[2]
    answers = [mark[1] for mark in HASH.finditer(text) if not is_heading(text, mark)]
    return (answers[-1] if answers else stated_gold(text) or text).strip()


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


def accepted(gold) -> list:
    """All answers that a gold value accepts: the value, or the items of nested lists; a matrix is one, as JSON text.

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
    """Whether a value is a list of equally long rows of numbers."""
    rows = value if isinstance(value, list) and all(isinstance(row, list) for row in value) else []
    plain = all(isinstance(cell, numbers.Number) for row in rows for cell in row)
    return plain and bool(rows) and {*map(len, rows)} == {max(1, len(rows[0]))}


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


# ------------------------------------------------------------------- question parts (src/parts/data/question_parts.py)

SHORT_NOTES = ("narrative", "puzzle", "premises", "clues")  # some files hold a name or a count in these columns
# texts that a question is about, in the order in which they precede it
READ_FIRST = (
    *("pre_text", "context", "contexts", "ctx", "passage", "passages", "article", "body", "story", "background"),
    *("document", "documents", "doc", "docs", "para", "paragraph", "paragraphs", "premise", "hypothesis", "support"),
    *("dialogue", "dialog", "schema", "table", "tables", "scenario", "excerpt", *SHORT_NOTES, "post_text"),
)
# either part of the question or notes about it
DOUBTFUL = (
    "hint hints fact facts evidence evidences history sentence1 sentence2 sent1 sent2 starter_code abstract essay "
    "knowledge situation transcript vignette email snippet constraints input_format output_format input_description "
    "output_description search_results statement statements claim conclusion theory tools functions "
    "responses_create_params prev_messages previous_messages previous_turns past_turns context_turns source_text "
    "reference_text full_text kontext textabschnitt contexte contexto passaggio 上下文 背景 文章 材料 原文 段落"
).split()
SECOND_TEXTS = ("prompt", "question", "problem", "query", "instruction", "text", "input", "description")
MEDIA = {"image", "picture", "figure", "img", "photo", "video", "audio", "diagram", "screenshot", "frame"}
MEDIA_ENDS = {"url", "uri", "link", "path", "file", "byte", "base", "data", "list", "caption", "description"}
PLACE = r"<(?:\|?(?:start_of_)?(?:image|video|audio)(?:[_ ]?(?:\d+|pad|placeholder))?\|?|\|vision_(?:start|end)\|)>"
BRACKETED = r"\[(?:image|IMG)\]"  # after a word it may be a blank to fill in, so it counts at the start of a prompt
MARKS = re.compile(rf"{PLACE}|(?<!\w){BRACKETED}")
PLACED = re.compile(rf"\A\s*(?:{PLACE}|{BRACKETED})|{PLACE}(?=\s*$)", re.MULTILINE)  # at the start or a line's end
HTML_TAGS = ("<image>", "<video>", "<audio>")
# before a placeholder: a word or an option, as in "the <image>" and "A) <image>"
NO_PLACE = re.compile(r"(?i)(?:\b(?:with|the|an?)|(?:\A|\n)\s*(?:\(?\w[.):]|[*-])|\b[A-J]\))\s*\Z")
HTML = re.compile(
    r"(?i)</(video|audio|image)>|\b(html5?|elements?|(?<![>`] )tags?)\b"
    r"|</?(!doctype|html|head|body|div|span|p|a|[uo]l|li|h[1-6]|table|br|img|source|track|svg|script|style)\b"
)
TRUTH = "TRUE|FALSE|WAHR|FALSCH|VRAI|FAUX|VERDADERO|VERDADEIRO|VERO|FALSO|WAAR|ONWAAR|ИСТИНА|ЛОЖЬ"  # spreadsheets'
JSON_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}  # in JSON Schema
SCHEMA_KEYS = {"$schema", "$ref", "anyOf", "oneOf", "allOf"}
NOTE_WORDS = {*"supporting gold answer output response correct solution is has num truth expected".split()}
SYSTEM = re.compile(r"system|sys(tem)?_?(prompt|message|msg|instructions?)")
TOOLS = ("tools", "functions")
TOOL_NAME = re.compile(r"""(["'])name\1: ?(["'])([^"']+)\2""")
TEST_NAMES = ("tests", "test_list", "unit_tests", "test")
CALL_NAME = re.compile(r"(?<![.\w])([A-Za-z_]\w*)\(")
BOUND = re.compile(r"\b(?:def|class|import|as|for)\s+(\w+)|\b(\w+)\s*=(?!=)")  # names that tests define
UNNAMED = "do not name the function that their tests call, so right programs fail; try adding its name, or the tests"
SQL = re.compile(r"\s*SELECT\b(?s:.*)\bFROM\b")
SINGLE = "[A-J]|true|True|false|False"  # letters of choices, truth values
CHOICE_KEYS = (
    "choices options answer_choices answer_options endings choice candidates alternatives mc1_targets answers "
    "distractors incorrect_answers"
).split()
NUMBER_KEYS = ("label", "gold_label", "correct", "correct_option", "answer_idx", "answer_index", "cop")
# one choice per column: A, optionB, option_1, opa, sol2, ending0, mc_answer4, "Incorrect Answer 3"
ONE_CHOICE = re.compile(
    r"((?i:op(?=[A-Da-d])|opt(?:ion)?|choice|(?:mc_?)?answer|ans|sol|ending|candidate|alternative|distractor"
    r"|(?:incorrect|wrong)_?answer)_?)([A-Ja-j]|\d\d?)|([A-Ja-j])"
)
WRONG = re.compile(r"(?i)distractor|incorrect|wrong")  # columns of wrong choices
MISSING = (
    r"\s*(#(N/A|REF!|DIV/0!|NAME\?|VALUE!|NUM!|NULL!)|#{3,}|N/?A|n/a|[Nn]a[Nn]|null|NULL|None|\\N|-+|\?+"
    r"|proof|not ?found|No answer provided)\s*"
)
MISSING_TEXT = re.compile(MISSING, re.IGNORECASE)
TRACES = {"trajectory", "rollout", "attempt", "attempts", "critique", "judge", "generation"}  # what a model did
REPLIES = ("assistant", "gpt", "bot", "model")
LOST_BACKSLASH = re.compile(r"[\x08\f][a-z]|\t(?:ext|imes|heta|frac)\b|\r(?:ight|angle|ho)\b")
# how spreadsheets rewrite fractions and ratios (as dates, in eight languages) and long numbers (with exponents)
SPREADSHEET = (
    r"(?i:\d\d?([-/]|\. ?)(janv?|ene|gen|fe[bv]|févr|mars?|m[rä][rzt]|a[bpv]r|ma[giy]|mei|jui?[ln]|giu|lug|aug|ago|août"
    r"|sept?|set|o[ckt]t|out|nov|d[eé][cz]|dic)\.?)|\d{4}-\d\d-\d\d[ T]00:00:00|-?\d([.,]\d+)?E\+\d\d"
)
GROUPED_MONEY = r"(?i)[-+]?([€$£¥₹] ?[1-9]\d?\d?\.\d{3}|[1-9]\d?\d?\.\d{3} ?([€£¥₹]|eur(os?)?|usd|dollars?))"
BLANK = r"(?:[^\S\n]|[\u200b-\u200f\u2060\ufeff])"  # also zero-width ones
WHOLE = r"\s*[-+]?\d+\.0\s*"
ODD_ANSWERS = {  # pattern of answers that a reward may misread -> message, with an example in place of {}
    r"\s*": "are empty, which every text contains: a reward may pay all of them; fill them in, or drop the rows",
    MISSING: "look like {}, a missing value or a spreadsheet's error; fill them in, or drop the rows",
    WHOLE: "look like {}: a reward that compares texts pays no integer; in pandas: .astype('Int64')",
    rf"(?!\s*\Z)({BLANK}.*|.*{BLANK})": "have blanks around them, like {}, which a reward may compare; strip them",
    GROUPED_MONEY: "look like {}: graders take the point for a decimal point; write 1200 if it groups thousands",
    SPREADSHEET: "look like {}, as spreadsheets rewrite fractions and long numbers; export the column as text",
    rf"(?s).*(?:{LOST_BACKSLASH.pattern}).*": "have lost backslashes, like {}: in JSON, \\frac is written \\\\frac",
    r"""(?s)b(["']).*\1""": "are bytes as Python prints them, like {}, which pay no answer; decode them",
    r"""=".*"|'-?[\d.,/]+""": "have a spreadsheet's mark of text, like {}, which is no part of the answer; delete it",
    r"[^\d]*(?![0-9０-９])\d.*": "have digits that some graders take for text, like {}; write 0 to 9",
    TRUTH: "are truth values, {}, which pay no Yes and No; write the words that prompts ask for",
    r"""(?s)\s*\[\s*(["']).*\1\s*\]\s*|(\{.*: ?)?array\(\[["'].*""": "are lists as text, like {}; write lists",
}

ODD_PROMPTS = {  # pattern of prompts that are not as their author wrote them -> message
    r'(?s)\A\s*\[\s*".*"\s*\]\s*\Z': "are lists as JSON text; try data_loader.py --map prompt=COLUMN.0",
    r"!\[[^\]]*\]\([^)\s]+\)": "have a Markdown image, which a text model cannot see",
    LOST_BACKSLASH.pattern: "have lost backslashes: in JSON, \\frac is written \\\\frac",
    "Ã[\xa1-\xbf]|â€.": "look like UTF-8 read as cp1252, such as Ã¶ for ö",
    rf"\A{MISSING}\Z": "are a missing value, such as nan or None; fill them in, or drop the rows",
    r"\n\n(?i:nan|none|null|<?no ?input>?)\Z": "end in a missing value, such as nan or <noinput>; empty that column",
    r"(?is)\A(?!.*(?:html|xml|escap|</)).*&(?:[lg]t|amp|quot|nbsp|#\d+);": "have HTML entities, such as &lt; for <",
    r"\bN_00\b|\bnumber0\b": "have placeholders for numbers, such as N_00",
}


def plain_name(name: str) -> str:
    """A column's name in snake case: `Correct Answer` becomes `correct_answer`."""
    return re.sub(r"[\s-]+", "_", name.strip()).lower()


@functools.lru_cache(4096)
def names_part(name: str) -> bool:
    """Whether a column's name says that it holds a part of the question."""
    if plain_name(name) in (*READ_FIRST, *DOUBTFUL, *SECOND_TEXTS) or is_system(name):
        return True
    words = words_in(name)
    if not words or NOTE_WORDS & {*words}:
        return False
    return is_media(name) or (len(words) > 1 and head_of(name) in {*READ_FIRST, *DOUBTFUL})


def is_system(name: str) -> bool:
    """Whether a column's name says that it holds a system prompt."""
    return SYSTEM.fullmatch(plain_name(name)) is not None


def head_of(name: str) -> str:
    """The head noun of a column's name: "passage" in `flores_passage` and `passage_text`; "" in a name of digits."""
    stems = [word.removesuffix("s") for word in words_in(name)] or [""]
    return stems[-2] if len(stems) > 1 and stems[-1] in ("text", "content") else stems[-1]


def words_in(name: str) -> list[str]:
    """The words of a column's name in snake or camel case, in lower case."""
    return re.findall(r"[^\W\d_]+", plain_name(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)))


def is_media(name: str) -> bool:
    """Whether a column's name says that it holds images, video or sound, or their location."""
    stems = [word.removesuffix("s") for word in words_in(name)]
    return bool(MEDIA & {*stems}) and stems[-1] in MEDIA | MEDIA_ENDS


@functools.lru_cache(4096)
def choice_names(names: tuple[str, ...]) -> tuple[list[str], list[tuple[str, ...]]]:
    """(columns that may hold all choices, groups of columns that hold one choice each, such as A, B, C) of a row."""
    families = {}
    for name in names:
        if match := ONE_CHOICE.fullmatch(re.sub(r"[\s-]+", "_", name)):
            prefix, mark = match[1] or str(match[3].isupper()), match[2] or match[3]
            place = int(mark) if mark.isdigit() else ord(mark.lower()) - ord("a")
            families.setdefault(prefix.lower(), {})[place] = name
    complete = []
    for prefix, family in families.items():
        least = 4 if prefix == "false" else 1 if WRONG.match(prefix) else 2  # `a` and `b` alone are often two numbers
        if min(family) < 2 and len(family) >= least and max(family) - min(family) + 1 == len(family):
            complete.append(tuple(family[place] for place in sorted(family)))
    listed = [name for name in names if re.fullmatch(r"(?i)\w+_(?:option|choice)s?_list", name)]
    return [*(name for name in CHOICE_KEYS if name in names), *listed], complete


def choice_columns(row: dict) -> tuple[str, ...]:
    """The column or columns that hold the choices of a question; () if there are none."""
    keys, families = choice_names(tuple(row))
    for name in keys:
        value = row[name]
        if is_empty(value) or not isinstance(value, str | list | dict):
            continue
        if isinstance(value, str) and (name == "choice" or value.strip() in ("[]", "{}")):
            continue
        if name == "answers":  # choices in ReClor; in other data sets the accepted answers
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
    return value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())


def texts_in(value) -> list[str]:
    """Every text and number in a nested value, without the roles of chat messages."""
    if isinstance(value, dict | list):
        inner = value if isinstance(value, list) else [item for key, item in value.items() if key != "role"]
        return [text for item in inner for text in texts_in(item)]
    return [] if value is None or isinstance(value, bool) else [value if isinstance(value, str) else repr(value)[:100]]


def placeholder_in(text: str) -> str | None:
    """The first placeholder of an image, video or sound in a prompt; None if there is none.

    `<image>`, `<video>` and `<audio>` may also be HTML tags: in a text with HTML they count only at the start.
    """
    for place in PLACED.finditer(text):
        may_be_tag = place.start() and place[0] in HTML_TAGS
        if not may_be_tag or not (HTML.search(text) or NO_PLACE.search(text[: place.start()])):
            return place[0].strip()
    return None


def squeezed(text: str) -> str:
    """A text with one blank between its words."""
    return " ".join(text.split())


def is_json_schema(name: str, value) -> bool:
    """Whether a `schema` column holds a JSON Schema, which a reward checks against, and not tables of a database."""
    with contextlib.suppress(ValueError):
        value = json.loads(value) if isinstance(value, str) else value
    if head_of(name) != "schema" or not isinstance(value, dict):
        return False
    properties = value.get("properties")
    typed = isinstance(properties, dict) and all(isinstance(one, dict | bool) for one in properties.values())
    return typed or str(value.get("type")) in JSON_TYPES or bool(SCHEMA_KEYS & value.keys())


def are_earlier_turns(value, prompt) -> bool:
    """Whether a column holds messages that a prompt of one turn may continue, and not that prompt with a reply."""
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    turns = [(item.get("role", item.get("from")), str(item.get("content", item.get("value")))) for item in items]
    messages = [("user", prompt)] if isinstance(prompt, str) else [(turn["role"], turn["content"]) for turn in prompt]
    if len(turns) < 2 or turns[-1][0] not in REPLIES or any(role in REPLIES for role, _ in (turns[0], *messages)):
        return False
    asked, parts = squeezed(messages[-1][1]), [squeezed(part) for part in messages[-1][1].split("\n\n")]
    texts = [squeezed(text) for role, text in turns if role in ("user", "human")]
    return not any(text in asked or any(part and part in text for part in parts) for text in texts)


def whole_text(prompt) -> str:
    """The text of a prompt: itself, or the texts of its messages."""
    return prompt if isinstance(prompt, str) else "\n\n".join(str(message["content"]) for message in prompt)


def unread_parts(row: dict, prompt) -> list[str]:
    """Columns that look like part of the question but whose text is not in the prompt (a text or messages)."""
    choices = choice_columns(row)
    turns = [name for name in row if not (NOTE_WORDS | TRACES) & {*words_in(name)}]
    turns = [name for name in turns if are_earlier_turns(row[name], prompt)]
    names = [name for name in dict.fromkeys([*filter(names_part, row), *choices, *turns]) if not is_empty(row[name])]
    names = [name for name in names if row[name] != prompt and not is_json_schema(name, row[name])]
    names = [n for n in names if n != "evidences" or not re.match(r"\s*\[\s*\[[^\[\]]*\]", str(row[n]))]  # gold triples
    if not names:
        return []
    whole = whole_text(prompt)
    asked, parts, unread = squeezed(whole), [squeezed(part) for part in whole.split("\n\n")], []
    has_letters = all(re.search(rf"\b{letter}\s?[).:、．]", asked, re.IGNORECASE) for letter in "AB")  # choices A, B
    for name in names:
        inside = [squeezed(text) for text in texts_in(row[name])]
        if name in TOOLS:  # a chat template may write them in another form
            inside = [match[3] for match in TOOL_NAME.finditer(str(row[name]))]
        is_note = isinstance(row[name], int | float) and name not in choices
        is_note = is_note or (name in READ_FIRST and MISSING_TEXT.fullmatch(str(row[name])) is not None)
        is_note = is_note or (name == "query" and SQL.match(str(row[name])) is not None)  # Spider's gold
        is_whole = name in SECOND_TEXTS and len(inside) == 1 and all(part in inside[0] for part in parts)  # Alpaca's
        is_there = all(text in asked for text in inside) and (name not in choices or has_letters)
        if not is_note and not is_whole and not is_there:
            unread.append(name)
    return unread


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


def odd_answers(name: str, values: list, prompts: Sequence = ()) -> list[str]:
    """One message for each kind of answer that a reward may misread; truth values may stay if most prompts name them.

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
    several, number = [], re.compile(rf"[-+]?\d[\d.,]*|{SINGLE}")
    for value in (value for value in values if isinstance(value, list)):
        items = [item.replace(",", "") for item in map(str, accepted(value)) if number.fullmatch(item)]
        if len({round(float(i), 2) if re.fullmatch(r"\D?\d+(\.\d*)?", i) else i.lower() for i in items}) > 1:
            several.append(items[:3])
    line = "list several numbers, letters or truth values, like {}, any of which pays; write one text if all are needed"
    odd[line] = several
    findings = ((line.format(reprlib.repr(items[0])), len(items)) for line, items in odd.items() if items)
    return [f"{count} of {len(values)} values of {name} {line}" for line, count in findings]


def odd_prompt(row: dict, prompt) -> list[str]:
    """What is odd about a row's prompt, a text or messages, said of many prompts."""
    message = {"role": "", "content": prompt} if isinstance(prompt, str) else prompt[-1]
    last = str(message["content"])
    is_dialogue = DIALOGUE.match(last) and not last.rstrip().endswith("<think>")
    flaws = (
        (placeholder_in(last), "have an image placeholder, but no image; try data_loader.py with --on_bad skip"),
        (
            message["role"] and holds_answer(f"{last} …"),
            "open an assistant's turn themselves, and a chat template writes another",
        ),
        (message["role"] == "assistant", "end with an answer, which the model continues; try data_loader.py"),
        (holds_answer(last) or is_dialogue, "are dialogues with answers as one text; try a list `messages`"),
        (unnamed_function(row, whole_text(prompt)), UNNAMED),
        *((re.search(pattern, last), line) for pattern, line in ODD_PROMPTS.items()),
    )
    return [line for flaw, line in flaws if flaw]


def warn_unread(source: str, asked: list[tuple[dict, object]]) -> Counter:
    """Warn of odd answers and prompts, and of unread columns, whose counts it returns; `asked`: (row, prompt) pairs."""
    counts, flaws, total = Counter(), Counter(), len(asked)
    for name in ("answer", "final_answer", "expected_answer", "ground_truth"):
        for line in odd_answers(name, [row[name] for row, _ in asked if name in row], [prompt for _, prompt in asked]):
            say(f"warning: {source}: {line}")
    for row, prompt in asked:
        flaws.update(odd_prompt(row, prompt))
        prepared = isinstance(row.get("prompt"), list) and {"source", "id"} <= row.keys()  # by data_loader.py
        counts.update([] if prepared else unread_parts(row, prompt))
    for message, count in flaws.items():
        say(f"warning: {source}: {count} of {total} prompts {message}")
    if counts:
        names = ", ".join(f"{name} (in {count} of {total} rows)" for name, count in counts.items())
        got = f"got columns that look like a part of the question but are in no prompt: {names}"
        command = f"python {in_bundle('scripts/data_loader.py')} {source} --out FILE.jsonl"
        say(f"warning: {source}: {got}; try `{command}`, or --drop {shlex.join(counts)} with it to leave them out")
    return counts


# --------------------------------------------------------------------------------------- chat (src/parts/data/chat.py)


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


# ------------------------------------------------------------------------- verl layout (src/parts/data/verl_layout.py)

VERL_COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
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


# ----------------------------------------------------------------------------- batches (src/parts/networks/batches.py)


def left_pad(sequences: list[list[int]], pad_id: int, device):
    """Pad sequences on the left; returns (input_ids, attention_mask), both [B, T]."""
    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences], device=device)
    mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences], device=device)
    return ids, mask


# --------------------------------------------------------------------- bad rows (src/programs/data_loader/bad_rows.py)

KINDS = ("prompts", "conversations", "prompt_response", "preferences", "math", "choices", "code")
TARGETS = ("ours", "trl", "verl")
MAX_DEPTH = 100  # levels of JSON; deeper values break later readers, Python's own encoder among them
STRING = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)  # of Python
HEAD = 100  # first rows of a file, which decide its form
TEXT_ONLY = "text only: images, video and audio are not read"


class Names:
    """Names of columns by what they hold, in order of preference."""

    PROMPT = (
        *(*SECOND_TEXTS, "question_content", "problem_description", "problem_statement", "instruct_prompt"),
        *("complete_prompt", "inputs"),
    )
    CHOICE_PROMPT = (*PROMPT, "question_stem", "stem", "goal", "ctx", "startphrase", "sent1", "sentence")
    CHAT = ("messages", "conversations", "conversation")
    RESPONSE = ("completion", "response", "output", "target", "targets", "answer")
    GOLD = (
        "answer final_answer expected_answer correct_answer reference_answer gold_answer short_answer exact_answer "
        "numeric_answer numerical_answer answer_number answer_value accepted_answers golden_answer golden_answers "
        "ground_truth ground_truths golden gold expected_output ideal ref_answer gt_answer final_ans "
        "ground_truth_answer target targets expected answers answers_spans final_decision label verification_info"
    ).split()
    ANSWER = (*GOLD, "solution")
    TESTS = (
        "tests test_list test_cases unit_tests unit_test test_code official_tests input_output public_test_cases "
        "private_test_cases public_tests private_tests generated_tests hidden_unit_tests test"
    ).split()
    # columns of a row that is a single message, as in OpenAssistant
    MESSAGES_ALONE = (("parent_id", "role"), ("role", "content"), ("from", "value"))
    # one of several responses: \1 and the rest of the name are the same in each of them
    COMPARED = re.compile(
        r"(response|ref|reply|completion|output|summary|conversation)_?[a-z0-9]\Z"
        r"|chosen|rejected|accepted|non_preferred|preferred|better|worse"
    )


class BadRow(RowFlaw):
    """A row that does not fit."""


class BadRows(UserError):
    """Rows that do not fit; the message shows 20 of `rejected`."""

    def __init__(self, rejected: list[dict]):
        self.rejected, count = rejected, len(rejected)
        lines: dict[tuple, list] = {}  # rows with the same flaw are one line
        for item in rejected[:20]:
            lines.setdefault((item["file"], flaw_of(item)), []).append(item["line"])
        shown_rows = []
        for (file, flaw), (first, *others) in lines.items():
            also = f" (also in line{'s' if others[1:] else ''} {', '.join(map(str, others))})" if others else ""
            shown_rows.append(f"{file}:{first}: {flaw}{also}")
        if count > 20:
            everything = "--on_bad skip with --out FILE lists all in FILE.rejected.jsonl"
            shown_rows.append(f"… and {count - 20} more; {everything}")
        rows = "row" if count == 1 else "rows"
        head = f"got {count} bad {rows}; expected none; try fixing them, or --on_bad skip to omit them"
        super().__init__("\n".join([head, *shown_rows]))


def flaw_of(item: dict) -> str:
    return f"{item['field']}: got {item['got']}; expected {item['expected']}; try {item['try']}"


def shown(value) -> str:
    """A value as text for messages: at most 80 characters, printable whatever it holds."""
    text = repr(value)[:1000]
    return (text if len(text) <= 80 else text[:79] + "…").encode("utf-8", "backslashreplace").decode()


def plain_text(text: str) -> bool:
    """Whether UTF-8 can hold the text: it has no lone surrogate."""
    return re.search("[\ud800-\udfff]", text) is None


def as_plain(value, name: str = "row", depth: int = 0, any_size: bool = False):
    """Return a value as JSON types, with dates and decimals as text; BadRow names the field of other types.

    Integers may have 64 bits, as pyarrow changes or refuses longer ones; in tests (`any_size`) any number.
    """
    if isinstance(value, str):
        if not plain_text(value):
            raise BadRow(name, f"{shown(value)}, which is not Unicode text", "UTF-8", "correcting the encoding")
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not any_size and not -(2**63) <= value < 2**63:
            raise BadRow(name, "an integer of more than 64 bits", "one that pyarrow can hold", "writing it as a string")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRow(name, value, "a finite number", "null, or leaving the field out")
        return value
    if depth > MAX_DEPTH:
        raise BadRow(name, "nesting too deep", f"at most {MAX_DEPTH} levels", "storing the inner part as JSON text")
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str) or not plain_text(key)]:
            raise BadRow(name, f"the key {shown(wrong[0])}", "text as keys")
        if depth == 0 and name == "row":
            return {key: as_plain(item, key, 1, key in Names.TESTS) for key, item in value.items()}
        return {key: as_plain(item, name, depth + 1, any_size) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item, name, depth + 1, any_size) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    expected = TEXT_ONLY if is_media(name) else "text, numbers, lists and objects"
    raise BadRow(name, type(value).__name__, expected, f"--drop {name} if the text does not need it")


def decoded(text: str, name: str, expected: str = "tests as JSON text, or Python source"):
    """The value of a cell's JSON text or Python literal; BadRow for other text, RowFlaw for a repeated key."""
    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        try:
            is_joined = re.search(r"''\s*''", STRING.sub("''", text))  # ['a' 'b'], as numpy prints lists
            value = ast.literal_eval("" if is_joined else text.strip())
        except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
            raise BadRow(name, shown(text), expected) from None
    return as_plain(value, name, any_size=True)


def opened(value):
    """The list or object that a cell holds as JSON text or a Python literal; other values stay as they are."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(RowFlaw):
            return decoded(value, "value")
    return value


# --------------------------------------------------------------------- messages (src/programs/data_loader/messages.py)

ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
    "human": "user",
    **dict.fromkeys(("gpt", "bot", "model", "function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response"), "tool"),
}
SIDES = {"human": "user", "user": "user", "input": "user", "assistant": "assistant", "output": "assistant"}
TEXT_PARTS = ("text", "input_text", "output_text")
ENDINGS = "png|jpe?g|gif|webp|bmp|tiff?|svg|mp[34]|wav|flac|ogg|webm|mov|avi|mkv"
PLACES = re.compile(rf"(?i)data:|https?://|[^\n]+\.({ENDINGS})\Z|[\w+/=]{{60}}")  # a URL, a file, base64
# {role: roles that it may follow; None: the beginning}
MAY_FOLLOW = {
    "system": (None,),
    "developer": (None, "system"),
    "user": (None, "system", "developer", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}
LONG_NAMES = ("context", "passage", "article", "document", "story", "paragraph", "schema", "table")
STATES = re.compile(r"\w\s*[=+]\s*\w|[^\W\d_]{2}[.!?][\"'”]?(\s|\Z)|[。！？]")  # a sentence or an equation
# a URL, or the name of a file in at most four words
LOCATION = re.compile(r"(?i)https?://\S+|([\w./\\-]+ ){0,3}[\w./\\-]+\.(pdf|docx?|txt|html?|md|csv|json|xlsx?)")
MAY_SOLVE = {"code", "test", "target"}  # words of columns that may hold the solution, as DS-1000's code_context does
TEXT_KEYS = ("text", "contexts", "sentences", "paragraphs", "passages", "paragraph_text", "passage_text", "content")
ANSWER_MARK = re.compile(r"(?i)\b(?:output|response|answer|assistant|solution|completion)\W*[:>\n]\W*\Z")


def read_messages(value, name: str) -> list[dict]:
    """Messages of OpenAI's or ShareGPT's form as {"role", "content", …}, without an empty system message."""
    if not isinstance(value, list) or not value:
        raise BadRow(name, shown(value), "a non-empty list of messages")
    if len(value) == 1 and isinstance(value[0], list) and isinstance(next(iter(value[0]), None), dict):  # BFCL's
        raise BadRow(name, "a list inside a list", "a list of messages", f"--map {name}={name}.0")
    first = int(len(value) > 1 and is_empty_turn(value[0], "system"))
    messages = []
    for number, raw in enumerate(value[first:], start=first):
        known = {role: raw[key] for key, role in SIDES.items() if isinstance(raw, dict) and key in raw}
        is_pair = [*known] == ["user", "assistant"] and len(raw) == 2  # a user's turn and its reply in one object
        turns = [{"role": role, "content": text} for role, text in known.items()] if is_pair else [raw]
        messages += [read_message(turn, f"{name}[{number}]") for turn in turns]
    return messages


def read_message(raw, name: str) -> dict:
    """One chat message as {"role", "content"} and its further keys that are not empty (tool_calls, name, …)."""
    if not isinstance(raw, dict):
        raise BadRow(name, shown(raw), 'a message such as {"role": "user", "content": "…"}')
    speaker, text = ("role", "content") if "role" in raw else ("from", "value")
    role = raw.get(speaker)
    known = ROLES.get(role.strip().lower()) if isinstance(role, str) else None
    if known is None:
        got = f"role {shown(role)}" if speaker in raw else f"the keys {', '.join(raw) or 'none'}"
        raise BadRow(name, got, f"one of {', '.join(sorted(ROLES))}", "renaming the role")
    content, calls = raw.get(text), raw.get("tool_calls") or raw.get("function_call")
    content = join_parts(content, name) if isinstance(content, list) else content
    content = "" if content is None and calls else content
    if not isinstance(content, str):
        raise BadRow(name, f"{text} {shown(content)}", "text, or a list of text parts")
    if not VISIBLE.search(content) and not calls and known != "tool":
        raise BadRow(name, f"empty content of role {known}", "text")
    if column := media_column(raw, content) if len(raw) > 2 else None:
        raise BadRow(f"{name}.{column}", shown(raw[column]), "text only", "leaving out rows with media")
    more = {key: item for key, item in raw.items() if key not in (speaker, text) and item not in (None, [], {})}
    if clash := {"role", "content"} & set(more):
        raise BadRow(name, f"{', '.join(sorted(clash))} beside from and value", "one form of message")
    return {"role": known, "content": content, **more}


def join_parts(parts: list, name: str) -> str:
    """The text of content parts, joined without separators, as chat templates do.

    Parts are OpenAI's {"type": "text", "text"} or LLaMA-Factory's {"type": "text", "value"}.
    """
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else part
        texts.append(part.get("text", part.get("value")) if isinstance(part, dict) and kind in TEXT_PARTS else None)
        if not isinstance(texts[-1], str):
            advice = "`tool_calls` and messages of the role tool for calls, or leaving out rows with media"
            raise BadRow(name, f"a content part {shown(kind)}", "text parts only", advice)
    return "".join(texts)


def is_empty_turn(turn, role: str) -> bool:
    """Whether a raw message has a role and no content."""
    by_role = isinstance(turn, dict) and ROLES.get(str(turn.get("role", turn.get("from")))) == role
    return by_role and all(is_empty(item) for key, item in turn.items() if key not in ("role", "from"))


def without_placeholder(value):
    """Raw messages without an empty last assistant turn, which stands for the completion."""
    return value[:-1] if isinstance(value, list) and value[1:] and is_empty_turn(value[-1], "assistant") else value


def check_order(messages: list[dict], name: str, before: str | None = None) -> None:
    """Raise BadRow if a role cannot follow the one before it in chat templates; `before`: role before the first."""
    for number, message in enumerate(messages):
        role = message["role"]
        if before not in MAY_FOLLOW[role]:
            after = f"after {before}" if before else "at the beginning"
            wanted = [other for other, roles in MAY_FOLLOW.items() if before in roles]
            raise BadRow(f"{name}[{number}]", f"role {role} {after}", " or ".join(wanted), "reordering the turns")
        before = role


def as_prompt(value, name: str, system=None) -> list[dict]:
    """A prompt, text or messages, as messages that end with user or tool."""
    if isinstance(value, str):
        if not VISIBLE.search(value):
            raise BadRow(name, "an empty prompt", "text")
        if holds_answer(value):
            raise BadRow(name, "a dialogue as one text, answers included", "a list of turns in `messages`")
        messages = [{"role": "user", "content": value}]
    elif isinstance(value, list) and value:
        messages = read_messages(without_placeholder(value), name)
    else:
        advice = [f"--map prompt={name}.FIELD"] if isinstance(value, dict) and value else []
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text or a list of messages", *advice)
    if system is not None:
        if not isinstance(system, str):
            raise BadRow("system", shown(system), "text")
        if system.strip() and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": system}, *messages]
    check_order(messages, name)
    if messages[-1]["role"] not in ("user", "tool"):
        advice = "renaming the field to `messages`, or moving the last turn to `completion`"
        more = "; to have the model continue that turn, give the file to the trainer as it is"
        raise BadRow(name, f"last role {messages[-1]['role']}", "a prompt that ends with user or tool", advice + more)
    return messages


def as_reply(value, name: str, prompt: list[dict]) -> str | list[dict]:
    """A completion: text, or messages that continue the prompt; if they repeat the prompt, it is cut off."""
    if isinstance(value, str):
        if not value.strip():
            raise BadRow(name, "an empty text", "a completion")
        return value
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text or messages")
    messages = read_messages(value, name)
    if len(messages) > len(prompt) and messages[: len(prompt)] == prompt:
        messages = messages[len(prompt) :]
    check_order(messages, name, prompt[-1]["role"])
    if messages[-1]["role"] != "assistant":
        raise BadRow(name, f"last role {messages[-1]['role']}", "assistant as the last role")
    return messages


def check_completion(row: dict, asked: str, completion: str | list[dict]) -> None:
    """Raise BadRow for a completion with a truth value for good or bad, as KTO has, or that the prompt contains."""
    kto = [name for name in ("label", "kto_tag") if str(row.get(name)).lower() in ("true", "false", "1", "0")]
    wrong = [name for name in ("correct", "is_correct") if str(row.get(name)).lower() == "false"]
    for name in kto or wrong:
        expected = "right completions only, or pairs of chosen and rejected"
        advice = "TRL's KTOTrainer, which reads such rows as they are" if kto else "--on_bad skip"
        advice += f", or --drop {name} to take all as right"
        raise BadRow(name, f"{row[name]} beside a completion", expected, advice)
    if ends_with(asked, completion if isinstance(completion, str) else completion[-1]["content"]):
        advice = "--drop prompt if other columns hold the question, or cutting it off"
        raise BadRow("prompt", f"{shown(asked[-60:])}, which ends with the completion", "the question alone", advice)


def ends_with(asked: str, reply: str) -> bool:
    """Whether a prompt ends with a reply, after a word such as `Answer:`."""
    before = asked.rstrip().removesuffix(reply.strip())
    return reply.strip() != "" and before != asked.rstrip() and ANSWER_MARK.search(before) is not None


def media_column(row: dict, text: str = "") -> str | None:
    """The first column with an image, video or audio: an object, a path, a URL, base64, or a list of these; or None.

    If the text has a placeholder such as `<image>`, any value in a column of such a name counts.
    """
    placed = MARKS.search(text) is not None
    for name, value in row.items():
        stem = (words_in(name) or [""])[0].removesuffix("s")  # not a column about another thing's picture
        named = (stem in MEDIA | {"decoded"} and is_media(name)) or name in ("multi_modal_data", "pixel_values")
        items = [item for item in (value if isinstance(value, list) else [value]) if item not in (None, "", [], {})]
        if named and value and any(placed or isinstance(x, dict | list) or PLACES.match(str(x)) for x in items):
            return name
    return None


def passages_before(row: dict, question: str, names: list[str], mapped: frozenset[str]) -> dict[str, str]:
    """{column: text} of passages to put before a question that does not quote them; BadRow for an unreadable one."""
    texts, asked = {}, squeezed(question)
    filled = [name for name in names if not is_empty(row[name])]
    passages = [name for name in READ_FIRST if name in filled]
    if "hint" in filled and "lecture" in row:  # ScienceQA's
        passages.append("hint")
    longer = [name for name in filled if names_part(name) and head_of(name) in LONG_NAMES]
    if not passages and len(longer) == 1 and not MAY_SOLVE & {*words_in(longer[0])}:
        passages = longer  # such as flores_passage; several might include distractors
    for name in passages:
        text, cell = passage(row[name]), opened(row[name])
        if name.startswith("table") and isinstance(row[name], list) and all(isinstance(x, dict) for x in row[name]):
            header = [*dict.fromkeys(key for item in row[name] for key in item)]
            text = table([header, *([item.get(key, "") for key in header] for item in row[name])])
        if isinstance(row[name], str) and isinstance(cell, list) and "json" not in question.lower():  # 2Wiki's
            documents = passage(cell) if any(isinstance(part, dict) or is_titled(part) for part in cell) else None
            text = documents if documents and all(part.strip() in documents for part in texts_in(cell)) else text
        if name not in mapped and (not text or MISSING_TEXT.fullmatch(text) or LOCATION.fullmatch(text.strip())):
            continue
        if text is None:
            expected = "text, texts, a table, or {title, text} with any of these"
            raise BadRow(name, shown(row[name]), expected, f"--map {name}=COLUMN.FIELD, or --drop COLUMN")
        words = {*re.findall(r"[^\W\d_]+", text.lower())} - {"the", "a", "an", name, name.removesuffix("s")}
        if name in SHORT_NOTES and name not in mapped and len(words) < 3 and not STATES.search(text):
            continue  # a puzzle's name or a drawn grid
        if text.strip() and not all(squeezed(part) in asked for part in texts_in(row[name])):
            texts[name] = text
    return texts


def passage(value) -> str | None:
    """The text of a passage, a list of passages, titled documents or a table; None for other values."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return document(value)
    if not isinstance(value, list) or not value:
        return None
    if all(map(is_titled, value)):  # HotpotQA's file
        value = [{"title": title, "sentences": texts} for title, texts in value]
    if isinstance(value[0], list):
        return table(value)
    texts = [*map(passage, value)]
    return None if None in texts else "\n\n".join(text for text in texts if text.strip())


def is_titled(pair) -> bool:
    """Whether a value is [title, sentences]."""
    return isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], list)


def document(value: dict) -> str | None:
    """The text of an object with title and text, lists of these (HotpotQA), texts (PubMedQA), or header and rows."""
    header, rows = value.get("header", value.get("columns")), value.get("rows", value.get("data"))
    if isinstance(header, list) and isinstance(rows, list):
        return table([header, *rows])
    key = next((key for key in TEXT_KEYS if not is_empty(value.get(key))), "")
    title, text = value.get("title", ""), value.get(key)
    if "role" in value or not key:  # a chat is no passage
        return None
    if isinstance(title, list) and isinstance(text, list) and len(title) == len(text):
        return passage([{"title": head, "sentences": body} for head, body in zip(title, text, strict=True)])
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        text = (" " if key == "sentences" else "\n\n").join(part.strip() for part in text if part.strip())
    if not isinstance(text, str) or not isinstance(title, str):
        return None
    return f"{title}\n{text}" if title.strip() else text


def table(rows: list) -> str | None:
    """Rows of cells as lines with | between cells; None if a cell is not plain."""
    cells = [cell for row in rows if isinstance(row, list) for cell in row]
    if not all(isinstance(row, list) for row in rows) or not all(
        isinstance(c, str | int | float | None) for c in cells
    ):
        return None
    return "\n".join(" | ".join("" if cell is None else str(cell) for cell in row) for row in rows)


def split_prompt(chosen, rejected) -> tuple:
    """(Prompt, chosen, rejected) messages of two dialogues that begin alike, as messages or HH-RLHF's text."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        texts, (chosen, rejected) = (chosen, rejected), map(turns_in, (chosen, rejected))
        if not chosen or not rejected:
            expected = "a field `prompt` beside it, or turns `\\n\\nHuman: …\\n\\nAssistant: …`"
            raise BadRow("chosen", shown(texts[0]), expected, "--map prompt=COLUMN")
    chosen, rejected = read_messages(chosen, "chosen"), read_messages(rejected, "rejected")
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    same = min(same, len(chosen) - 1, len(rejected) - 1)
    while same and chosen[same - 1]["role"] not in ("user", "tool"):
        same -= 1
    if not same:
        advice = "leaving out the row, or --map prompt=COLUMN where a column has the prompt"
        raise BadRow("chosen", "no prompt", "a field `prompt`, or dialogues that begin alike", advice)
    return chosen[:same], chosen[same:], rejected[same:]


# --------------------------------------------------- tests of programs (src/programs/data_loader/tests_of_programs.py)

METHOD = re.compile(r"\ASolution\(\)\.(\w+)\Z")  # the sandbox finds a method of class Solution by its bare name
NAMED = re.compile(r"\s*[A-Za-z_]\w*\s*=(?!=)")  # `nums = [3, 3], target = 6`
CALL = re.compile(r"\s*([A-Za-z_]\w*)\(.*\)\s*")
PARTS = (("public_test_cases", "private_test_cases"), ("public_tests", "private_tests", "generated_tests"))
OTHER_LANGUAGES = re.compile(
    r"(?i)(gnu )?(c(\+\+|pp|#|sharp)?|java(script)?|js|node(\.js)?|type(script)?|ts|go(lang)?|rust|ruby|php|kotlin"
    r"|swift|scala|perl|haskell|julia|lua|dart|pascal|bash|r|d|sql)([ -]?\d.*)?"
)
LITERALS = "values in JSON or Python"
ENTRY_ADVICE = "--map entry_point=COLUMN"
ASSERTS = re.compile(r"^\s*assert\b", re.MULTILINE)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def as_code(shape) -> None:
    """A task and its tests, as in HumanEval, MBPP and APPS."""
    shape.prompt()
    row = shape.row
    check_language(row, "tests")
    first = ("tests", "test") if row.get("entry_point") else ()
    names = (*dict.fromkeys((*first, *Names.TESTS)), "verification_info")
    name, _ = shape.take(sorted(names, key=lambda name: is_empty(row.get(name))), "tests")
    taken, tests = joined_tests(row, name)
    others = [key for key in Names.TESTS if key not in taken and name != "test" and texts_in(row.get(key))]
    others = [key for key in others if isinstance(row[key], list | dict) or ASSERTS.search(str(row[key]))]
    source = row["test"] if name == "test_list" and "test" in others else None
    alone = isinstance(source, str) and not re.search(r"candidate|def check\(", source) and parsed(source)
    if alone and isinstance(tests, list):  # MBPP+
        taken, tests, others = [*taken, "test"], [*tests, source], others[:-1]
    shape.out["tests"], shape.tests_name = tests, name
    shape.used.update(taken)
    others = [key for key in others if "tests" not in shape.facts.mapped and row[key] != row[name]]
    shape.notes += [f"rows have other tests in {key}; {name} is taken" for key in others]
    if isinstance(row.get("private_test_cases"), str) and "private_test_cases" not in taken:
        shape.notes.append("rows have pickled private_test_cases, which are never opened; only public tests are used")
    starter, message = row.get("starter_code"), shape.out["prompt"][-1]
    if isinstance(starter, str) and starter.strip() and starter.strip() not in message["content"]:
        message["content"] += f"\n\nBegin with this code:\n\n```python\n{starter.rstrip()}\n```"
    if row.get("setup") is not None:
        return
    if name == "test":  # HumanEval's tests use the imports and helpers of its prompt
        heads = [key for key in ("prompt", "complete_prompt") if isinstance(row.get(key), str) and is_program(row[key])]
        if heads:
            shape.out["setup"] = row[heads[0]]
            shape.used.add(heads[0])
    elif name == "test_list":
        imports = row.get("test_imports")
        lines = [row.get("test_setup_code"), *(imports if isinstance(imports, list) else [])]
        if setup := "\n".join(line for line in lines if isinstance(line, str) and line.strip()):
            shape.out["setup"] = setup


def joined_tests(row: dict, name: str) -> tuple[list[str], object]:
    """(Columns used, tests) of a column and the columns of PARTS that belong to it, without packed (pickled) tests."""
    names, by_column = next((part for part in PARTS if name in part), (name,)), {}
    for column in (column for column in names if row.get(column) is not None):
        value = row[column]
        packed = isinstance(value, str) and value.lstrip()[:1] not in ("[", "{")
        none = value in ([], {}, "[]", "{}") or (isinstance(value, dict) and not any(value.values()))
        if len(names) == 1 or not (packed or none):
            by_column[column] = read_tests(value, column, row)
    if not by_column:
        raise BadRow(name, shown(row[name]), "tests in JSON", "leaving out rows without tests")
    (first, tests), *others = by_column.items()
    for column, more in others:
        if isinstance(tests, list) and isinstance(more, list):
            tests = [*tests, *more]
        elif isinstance(tests, dict) and isinstance(more, dict):
            tests = {**tests, **{key: [*tests[key], *more[key]] for key in ("inputs", "outputs")}}
        else:
            raise BadRow(column, f"tests in another form than {first}", "tests in one form", f"--drop {column}")
    return [*by_column], tests


def read_tests(value, name: str, row: dict):
    """Put tests of any published form into one that scripts/sandbox.py takes; tests of a function become calls of it.

    BadRow for an empty set, which every program would pass.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = decoded(value, name)
    if isinstance(value, dict) and isinstance(value.get("test_cases"), list):  # PrimeIntellect's verification_info
        check_language(value, name)
        value = value["test_cases"]
    function = function_of(row)
    if isinstance(value, dict) and {"input", "output"} <= {*value} and not isinstance(value["input"], list):
        value = [value]
    if isinstance(value, dict):
        value = value_in_lists(value, name)
        inputs = value["inputs"]
        is_named = row.get("entry_point") or value.get("fn_name")
        if function and not is_named and all(isinstance(given, list) for given in inputs):
            value = {**value, "fn_name": function}
        if value.get("fn_name") and any(isinstance(given, str) for given in inputs):  # PRIME's: a JSON argument a line
            function, pairs = METHOD.sub(r"\1", value["fn_name"]), zip(inputs, value["outputs"], strict=True)
            value = [{"input": given, "output": output, "testtype": "functional"} for given, output in pairs]
    elif not isinstance(value, str | list):
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "Python source, a list, or inputs and outputs")
    if not (value.strip() if isinstance(value, str) else value["inputs"] if isinstance(value, dict) else value):
        raise BadRow(name, "no tests", "at least one, as every program passes an empty set")
    if not isinstance(value, list) or not all(isinstance(case, dict) and "input" in case for case in value):
        return value
    calls = [as_call(case, f"{name}[{number}]", function) for number, case in enumerate(value)]
    if all(calls):
        return paired(calls, value)
    return [call or case for call, case in zip(calls, value, strict=True)]  # check_case refuses a mixture


def value_in_lists(value: dict, name: str) -> dict:
    """Tests as an object with `inputs` and `outputs`, lists of one length."""
    value = {{"input": "inputs", "output": "outputs"}.get(key, key): item for key, item in value.items()}
    inputs, outputs = value.get("inputs"), value.get("outputs")
    lists = isinstance(inputs, list) and isinstance(outputs, list)
    if not lists or len(inputs) != len(outputs):
        keys = f"the keys {', '.join(value) or 'none'}"
        got = f"{len(inputs)} inputs and {len(outputs)} outputs" if lists else keys
        raise BadRow(name, got, "inputs and outputs, lists of one length")
    return value


def check_language(value: dict, name: str) -> None:
    language = next((value[key] for key in ("language", "programming_language", "lang") if key in value), None)
    if isinstance(language, str) and OTHER_LANGUAGES.fullmatch(language):
        raise BadRow(name, f"tests of programs in {language}", "Python", "leaving out rows in other languages")


def function_of(row: dict) -> str | None:
    """The name of the function under test, from the columns of a row or their `metadata`; None without one."""
    about = row.get("metadata")
    if isinstance(about, str) and about.lstrip().startswith("{"):
        about = decoded(about, "metadata", "JSON text")
    about = about if isinstance(about, dict) else {}
    names = [row.get("entry_point"), row.get("fn_name"), row.get("func_name"), about.get("func_name")]
    name = next((name for name in names if isinstance(name, str) and name), None)
    return name and METHOD.sub(r"\1", name)


def as_call(case: dict, name: str, function: str | None) -> dict | None:
    """A case with input and output as a call; None if its input is text on stdin. `function`: the row's."""
    given, case_function = case["input"], function_of(case)
    function, named = case_function or function, isinstance(given, str) and NAMED.match(given) is not None
    is_call = case_function or case.get("testtype") == "functional" or case.get("type") == "function_call"
    if not (is_call or named or (function and isinstance(given, list | dict))):
        return None
    if named:
        raise BadRow(name, f"named arguments, {shown(given)}", "JSON values, one per line, or tests in Python")
    if "output" not in case:
        raise BadRow(name, f"the keys {', '.join(case)}", "input and output")
    if function is None:
        expected = "the function's name: a column entry_point, or func_name in metadata"
        raise BadRow(name, f"arguments, {shown(given)}, and no function to call", expected, ENTRY_ADVICE)
    output = case["output"]
    if not isinstance(given, str):
        return {"function": function, "args" if isinstance(given, list) else "kwargs": given, "expected": output}
    arguments = [decoded(line, name, LITERALS) for line in given.splitlines() if line.strip()]
    output = decoded(output, name, LITERALS) if isinstance(output, str) else output
    return {"function": function, "args": arguments, "expected": output}


def paired(calls: list[dict], cases: list[dict]):
    """Calls of one function with argument lists in APPS's form, where a result may be in a list of one; other calls."""
    is_one = {call["function"] for call in calls} == {calls[0]["function"]}
    if not is_one or not all(isinstance(case["input"], list) for case in cases):
        return calls
    inputs, outputs = [call["args"] for call in calls], [call["expected"] for call in calls]
    return {"fn_name": calls[0]["function"], "inputs": inputs, "outputs": outputs}


def calls_on_stdin(tests, name: str, row: dict, asked: str) -> list[str]:
    """A note if text on stdin may be meant for a function; BadRow if it calls one that the row or prompt names."""
    function, tests = function_of(row), tests if isinstance(tests, list) else []
    cases = [case for case in tests if isinstance(case, dict) and not {"testtype", "type", "expected"} & {*case}]
    given = [case["input"] for case in cases if isinstance(case.get("input"), str)]
    called = [call and call[1] for call in map(CALL.fullmatch, given)]
    for text in filter(None, given):  # examples in the prompt do not count
        asked = asked.replace(text.strip(), "")
    for text, word in zip(given, called, strict=True):
        named = rf"`{word}\b|\b{word}\(|\b(?:def|functions?|methods?|called|named)\W{{1,3}}{word}\b"
        named += rf"|(?i:\b{word}\b)" if all(called) and given[1:] else ""
        if word and (word == function or re.search(named, asked)):
            expected, advice = "calls as {function, args, expected}, or asserts", '"testtype": "stdin" if it is stdin'
            raise BadRow(f"{name}[{given.index(text)}]", f"{shown(text)}, a call of {word}", expected, advice)
    note = 'rows have tests that may be calls of a function, read as stdin; "testtype": "stdin" in a test says so'
    return [note] if given and (function or any(called)) else []


def check_runnable(row: dict, name: str) -> None:
    """Raise BadRow for tests that cannot tell programs apart, as no program passes, or none fails."""
    tests, entry_point = row["tests"], row.get("entry_point") or None
    if entry_point is not None and not entry_point.isidentifier():
        raise BadRow("entry_point", shown(entry_point), "the name of a function, or of a method of class Solution")
    if isinstance(tests, dict):
        function, inputs = tests.get("fn_name"), tests["inputs"]
        if entry_point and not function and not all(isinstance(given, str) for given in inputs):
            got = f"inputs that are not text, and entry_point {shown(entry_point)} without fn_name"
            raise BadRow(name, got, "text for a script, or a function to call", "the key fn_name in the tests")
        if not function:
            return
        tests, name = [{"function": function, "args": given, "expected": None} for given in inputs], f"{name}.inputs"
    tests = [tests] if isinstance(tests, str) else tests
    if any(isinstance(test, str) for test in tests) and not all(isinstance(test, str) for test in tests):
        raise BadRow(name, "Python source beside other tests", "tests in one form")
    if isinstance(tests[0], str):
        return check_asserts(tests, name, entry_point, row)
    on_stdin = isinstance(tests[0], dict) and "expected" not in tests[0]
    for number, test in enumerate(tests):
        check_case(test, f"{name}[{number}]", entry_point, on_stdin)


def check_case(test, name: str, entry_point: str | None, on_stdin: bool) -> None:
    """Raise BadRow unless a test is a script's input and output, or says which function to call with what."""
    if isinstance(test, list) and len(test) == 2:
        test = {"args": test[0] if isinstance(test[0], list) else [test[0]], "expected": test[1]}
        entry_point = entry_point or "solution"  # this bundle's rewards call that
    if not isinstance(test, dict) or ({"input", "output"} <= set(test)) == ("expected" in test) or "stdin" in test:
        raise BadRow(name, shown(test), "source, {input, output}, {args, expected} or [args, expected]")
    if ("expected" in test) == on_stdin:
        raise BadRow(name, "a test for stdin among calls, or the reverse", "tests in one form")
    if on_stdin:
        wrong = [key for key in ("input", "output") if not isinstance(test[key], str | int | float)]
        if wrong := wrong or (["fn_name"] if test.get("fn_name") else []):
            got = f"{wrong[0]} {shown(test[wrong[0]])} in a test with input and output"
            raise BadRow(name, got, "text on stdin and stdout", 'calls as {"function", "args", "expected"}')
        return
    function, arguments, named = test.get("function") or entry_point, test.get("args", []), test.get("kwargs") or {}
    if function is None:
        raise BadRow("entry_point", "no name of the function to call", "one, or `function` in each test", ENTRY_ADVICE)
    if not isinstance(function, str) or not function.isidentifier():
        raise BadRow(name, f"function {shown(function)}", "the name of a function")
    if not isinstance(arguments, list) or not isinstance(named, dict):
        got = f"args {shown(arguments)} and kwargs {shown(named)}"
        raise BadRow(name, got, f"a list of the arguments of {function} and an object")


def check_asserts(sources: list[str], name: str, entry_point: str | None, row: dict) -> None:
    """Raise BadRow unless Python tests have an assertion, and the function under test has a name."""
    trees = [parsed(source) for source in sources]
    if None in trees or not all(source.strip() for source in sources):
        raise BadRow(name, f"{shown(sources)}, part of which is empty or does not parse", "Python source")
    nodes = [node for tree in trees for node in ast.walk(tree)]
    called = {node.id for node in nodes if isinstance(node, ast.Name)} | {"check"}  # the sandbox calls check and test…
    idle = [node for tree in trees for node in tree.body if isinstance(node, FUNCTIONS) and node.name not in called]
    unused = {part for node in idle if not node.name.startswith("test") for part in ast.walk(node)}
    if not any(is_counted(node) for node in nodes if node not in unused):
        expected = "an assert that is run, or a unittest.TestCase"
        raise BadRow(name, "tests that assert nothing, or only in functions that are never called", expected)
    words = [node for node in nodes if isinstance(node, ast.Name)]
    loaded = {node.id for node in words if isinstance(node.ctx, ast.Load)}
    given = {word for node in nodes for word in (getattr(node, "arg", ""), getattr(node, "name", ""))}
    given |= {node.id for node in words if not isinstance(node.ctx, ast.Load)}
    functions = {node.name for node in nodes if isinstance(node, FUNCTIONS)}
    unnamed = "tests in check(candidate)" if "check" in functions - loaded else ""
    if "candidate" in loaded - given and "candidate" not in f"{row['prompt'][-1]['content']} {row.get('setup', '')}":
        unnamed = "tests of `candidate`"
    if entry_point is None and unnamed:
        raise BadRow("entry_point", f"{unnamed} without one", "the function under test", ENTRY_ADVICE)


def is_counted(node: ast.AST) -> bool:
    """Whether a node is a test: an assert, a call of assert… or raises, a test case."""
    if isinstance(node, ast.ClassDef):
        return bool(node.bases)
    function = getattr(node, "func", None)
    name = getattr(function, "attr", getattr(function, "id", ""))
    return isinstance(node, ast.Assert) or name == "raises" or name.startswith("assert")


def is_preamble(text, entry_point) -> bool:
    """Whether a text is Python with imports and helpers, but without the function to write."""
    if not isinstance(text, str) or not entry_point or not re.search(r"^(import|from) \w", text, re.MULTILINE):
        return False
    tree = parsed(text)
    return tree is not None and all(node.name != entry_point for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


# ----------------------------------------------------------------------- answers (src/programs/data_loader/answers.py)

MONEY = re.compile(r"-?\$?-?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?")
SPAN = {"text", "answer_start", "answer_end", "tokens"}  # keys of an answer in a passage in SQuAD and NarrativeQA


def gold_of(text: str) -> str | None:
    r"""The final answer in a worked solution: after a final `####`, else in the last \boxed{…}, else in the last line.

    >>> gold_of("It is 1000 + 3.\n#### 1,003")
    '1003'
    """
    text = visible(text)
    answer, inner = None, text
    while inner is not None:
        if mark := hash_mark(inner):
            inner = answer = (stated_gold(mark[1]) or mark[1]).strip("* ")
        else:
            boxes = boxes_in(inner)
            if boxes is None:  # a box is cut off, which matters only if it is the last
                boxes = boxes_in(inner[max(inner.rfind("\\boxed"), 0) :])
            inner = boxes[-1] if boxes else None
            answer = answer if inner is None else inner.strip()
    answer = stated_gold(text) if answer is None else answer
    return answer.replace(",", "").replace("$", "") if answer and MONEY.fullmatch(answer) else answer


def as_answer(value, name: str) -> str | list[str]:
    """An answer as text, or a list of accepted answers; numbers and truth values are written as in JSON."""
    if isinstance(value, dict) and value:
        accepted = accepted_answers(value)
        if accepted is None:
            inner = next((key for key in value if isinstance(value[key], str | int | float)), "KEY")
            expected = "text, a number, or a list of accepted answers"
            raise BadRow(name, f"an object with {', '.join(value)}", expected, f"--map answer={name}.{inner}")
        value = accepted
    if isinstance(value, list) and all(isinstance(item, dict) and "text" in {*item} <= SPAN for item in value):
        value = [item["text"] for item in value]  # SQuAD's own files
    if is_matrix(value):
        return json.dumps(value)
    if isinstance(value, list) and value and all(isinstance(item, str | int | float | None) for item in value):
        value = list(dict.fromkeys(as_answer(item, name) for item in value if not is_empty(item))) or ""
        if len(value) > 1:
            return value
        value = "".join(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text, a number, or a list of accepted answers")
    if not value.strip():
        raise BadRow(name, "an empty answer", "text or a number")
    return value


def accepted_answers(value: dict):
    """The accepted answers in TriviaQA's {value, aliases}, SQuAD's {text}, {"target": [...]}; None for other objects.

    DROP's spans are read only if there is one, as several are parts of one answer.
    """
    if "value" in value and isinstance(value.get("aliases"), list):
        return [value["value"], *value["aliases"]]
    if isinstance(value.get("text"), list) and set(value) <= SPAN:
        return value["text"]
    if set(value) == {"spans", "types"} and isinstance(value["spans"], list) and len({*map(str, value["spans"])}) == 1:
        return value["spans"][:1]
    if len(value) == 1 and set(value) <= set(Names.GOLD):
        return next(iter(value.values()))
    return None


def ground_truth(value, name: str, row: dict) -> dict:
    """Fields for a ground truth: `tests`, or `answer` with one or several answers; other objects stay `ground_truth`.

    JSON text is decoded if it holds tests or texts; a list of numbers may be mathematics and stays text.
    """
    whole, text = opened(value), isinstance(value, str)
    if isinstance(whole, dict) and (whole or name == "verification_info"):
        if isinstance(whole.get("test_code"), str):  # Skywork's
            called = METHOD.sub(r"\1", str(whole.get("entry_point") or ""))
            fields = {"entry_point": called, "setup": whole.get("import_prefix")}
            return {"tests": read_tests(whole["test_code"], name, {}), **{k: v for k, v in fields.items() if v}}
        if source := next((whole[key] for key in ("functional", "assert_case") if whole.get(key)), None):
            return {"tests": read_tests(source, name, row)}  # Code-R1's and verl's prime_code
        is_paired = {"inputs", "outputs"} <= set(whole) or {"input", "output"} <= set(whole)
        if is_paired or whole.get("test_cases") is not None:
            return {"tests": read_tests(whole, name, row)}
        accepted = accepted_answers(whole)
        if accepted is None and name == "verification_info":  # beside the data of its verifier
            accepted = whole.get("ground_truth", whole.get("answer"))
        return {"ground_truth": value} if accepted in (None, []) else {"answer": as_answer(accepted, name)}
    if isinstance(whole, list) and whole:
        cases = all(isinstance(item, dict) and "input" in item for item in whole)
        pairs = row.get("entry_point") and all(isinstance(item, list) and len(item) == 2 for item in whole)
        if cases or pairs or all(isinstance(item, str) and ASSERTS.search(item) for item in whole):
            return {"tests": read_tests(whole, name, row)}
        if not text or all(isinstance(item, str) for item in whole):
            return {"answer": as_answer(whole, name)}
    return {"answer": as_answer(value, name)}


def is_short(value) -> bool:
    """Whether a value may be a bare answer: a number, a list, or up to 5 words."""
    text = value.strip() if isinstance(value, str) else ""
    return isinstance(value, int | float | list) or ("\n" not in text and 0 < len(text.split()) < 6)


def names_value(value) -> bool:
    """Whether a `solution` is a bare answer, as in TRL's data for rewards: a number, a formula or a word."""
    if not isinstance(value, str) or not is_short(value) or "boxed" in value or is_program(value):
        return False
    return len(re.findall(r"(?<!\\)\b[^\W\d_]{2,}", value)) < 2


def marks_answer(value) -> bool:
    """Whether a text is a worked solution that marks its final answer, even if cut off."""
    return isinstance(value, str) and ("\\boxed" in value or gold_of(value) is not None)


# ----------------------------------------------------------------------- choices (src/programs/data_loader/choices.py)

LETTERS = string.ascii_uppercase
SCALAR = str | int | float
RIGHT_KEYS = ("correct_answer", "best_answer", "answer", "correct")  # columns beside those of wrong answers
RIGHT_WORDS = {"answer", "ans", "correct", "right", "gold", "key", "truth"}
PICK_WORDS = RIGHT_WORDS | {
    *"option choice label letter index idx number num value true the is ground expected final reference".split()
}
COUNT_FROM_0 = ("answer_idx", "answer_index", "correct_option", "label")  # as an index does
PICK_KEYS = ("cop", "label", "labels", "target")  # columns without these words that may say which choice is right
LABEL = re.compile(r"[A-Za-z]|\d\d?")
LABEL_END = re.compile(r"([A-Ja-j]|\d\d?)$")
CHOICE_TEXTS = ("text", "texts", "content", "option", "choice", "choices", "options", "answer", "value")
LABEL_KEYS = ("label", "key", "letter", "id", "identifier", "option")
LETTERED = re.compile(r"(?is)(?<![a-z])a(?![a-z]).*(?<![a-z])b(?![a-z])")
LETTER_ALONE = "rows have a letter as answer, but no choices in the prompt"  # noted if half of the rows are so


@dataclass
class Choices:
    """The choices of a row, and how it names the right one."""

    columns: tuple[str, ...]
    texts: list[str]
    labels: list[str] = field(default_factory=list)  # the row's names of the choices
    right: int | None = None  # index of the right choice, if the columns themselves say it
    first: int | None = None  # number of the first choice in published data of this form; None: unknown

    @property
    def are_lettered(self) -> bool:
        """Whether the choices have no labels but A, B, C, … in order."""
        return [label.upper() for label in self.labels] in ([], list(LETTERS[: len(self.labels)]))


def choices_of(row: dict) -> Choices | None:
    """The choices of a row; None if no column looks like choices, BadRow if they have no known form."""
    columns = choice_columns(row)
    if not columns:
        return None
    if WRONG.match(columns[0]):
        choices = from_wrong(row, columns)
    elif len(columns) == 1:
        choices = from_value(columns[0], row[columns[0]])
    else:
        choices = from_columns(row, columns)
    if choices is None or not 1 < len(choices.texts) <= len(LETTERS) or "" in choices.texts:
        expected = "2 to 26 choices: a list of texts, {text, label} or {A: text}"
        got = ", ".join(f"{name} {shown(row[name])}" for name in columns)
        raise BadRow(columns[0], got, expected, f"--drop {shlex.join(columns)} if these are not choices")
    return choices


def from_columns(row: dict, columns: tuple[str, ...]) -> Choices | None:
    """Choices with a column each, named by a letter (a label) or a number (from which numbers count)."""
    if any(not isinstance(row[name], SCALAR) for name in columns):
        return None
    marks = [LABEL_END.search(name)[1] for name in columns]
    texts, stem = [str(row[name]).strip() for name in columns], columns[0][: -len(marks[0])].lower()
    if marks[0].isdigit():  # PIQA's and COPA's `label` counts from 0, though their columns count from 1
        from_zero = stem in ("sol", "choice") and row.get("label") is not None
        return Choices(columns, texts, first=0 if from_zero else int(marks[0]))
    return Choices(columns, texts, [mark.upper() for mark in marks], first={"op": 0, "answer": 1}.get(stem))


def from_wrong(row: dict, columns: tuple[str, ...]) -> Choices | None:
    """The right answer and the wrong ones, shuffled by a seed made of their texts."""
    right = next((name for name in RIGHT_KEYS if isinstance(row.get(name), SCALAR)), None)
    wrong = row[columns[0]] if isinstance(row[columns[0]], list) else [row[name] for name in columns]
    texts = [row.get(right), *wrong]
    if right is None or not all(isinstance(text, SCALAR) for text in texts):
        return None
    texts, order = [str(text).strip() for text in texts], list(range(len(texts)))
    random.Random("\n".join(texts)).shuffle(order)
    return Choices((*columns, right), [texts[index] for index in order], right=order.index(0))


def from_value(name: str, value) -> Choices | None:
    """Choices in one column: a list, objects, ARC's {"text", "label"}, MedQA's {"A": text}, or one of these as text."""
    value = opened(value)
    if isinstance(value, list) and all(isinstance(item, list) and len(item) == 1 for item in value):
        value = [item[0] for item in value]  # TAL-SCQ5K's
    if isinstance(value, list) and all(isinstance(item, dict) and len(item) == 1 for item in value):
        pairs = {key: text for item in value for key, text in item.items()}  # NeMo Gym's [{"A": …}, {"B": …}]
        value = pairs if len(pairs) == len(value) else value
    labels = []
    if isinstance(value, dict):
        listed = next((key for key in CHOICE_TEXTS if isinstance(value.get(key), list)), None)
        if "labels" in value:  # truth values, as TruthfulQA has them
            return None
        if listed:
            labels, value = value.get("label") or [], value[listed]
        else:
            value = {key: item for key, item in value.items() if not is_empty(item)}
            if not all(LABEL.fullmatch(key) or ONE_CHOICE.fullmatch(key) for key in value):
                return None
            labels = [key if LABEL.fullmatch(key) else LABEL_END.search(key)[1] for key in value]
            value = list(value.values())
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        text = next((key for key in CHOICE_TEXTS if key in value[0]), None)
        label = next((key for key in LABEL_KEYS if key in value[0] and key != text), None)
        labels = [item.get(label) for item in value] if label else []
        value = [item.get(text) for item in value]
    while isinstance(value, list) and not labels and value and is_empty(value[-1]):
        value = value[:-1]
    plain = isinstance(value, list) and all(isinstance(text, SCALAR) for text in value)
    if not plain or not isinstance(labels, list) or len(labels) not in (0, len(value)):
        return None
    texts, labels = [str(text).strip() for text in value], [str(label).strip() for label in labels]
    return Choices((name,), texts, labels, first=0 if name in ("choices", "choice", "endings", "answers") else None)


def picked(row: dict, choices: Choices, first: int | None, as_texts: frozenset[str]) -> tuple[str, str, list[str]]:
    """(Letter of the right choice, the column that names it, notes on other columns and numbers); BadRow if unclear.

    `first`: number of the first choice in this file, if known; `as_texts`: columns whose numbers are choices' texts.
    """
    if choices.right is not None:
        return LETTERS[choices.right], choices.columns[0], []
    cells, start = cells_of(row, choices), choices.first if first is None else first
    places = {name: possible_places(name, value, choices, start, as_texts) for name, value in cells.items()}
    named = [name for name, value in cells.items() if named_place(value, choices) is not None]
    name = next((name for name in [*named, *cells] if places[name] != []), None)
    if name is None or places[name] is None:
        refuse_pick(row, choices, name or next(iter(cells), None), first, as_texts)
    value, options, others = cells[name], places[name], [places[other] or [] for other in cells if other != name]
    agreed = [place for place in options if any(place in other for other in others)]
    if len(options) > 1 and not agreed and first is None and isinstance(value, str):
        raise BadRow(name, f"{shown(value)}, the text of one choice and the number of another", "a letter")
    agreed = agreed if len(agreed) == 1 else []  # two ways to read both columns decide nothing
    place = (agreed or options)[0]
    notes = []
    for other in cells:
        unread = places[other] == [] and as_number(cells[other], choices) is not None  # a number past the last choice
        if unread or place not in (places[other] or [place]):
            notes.append(f"rows name another choice in {other}; {name} is taken")
    number = as_number(value, choices)
    is_open = number is not None and name not in named and first is None and 0 < number < len(choices.texts)
    if is_open and not agreed and len(choices.columns) == 1 and place == number - (start or 0):
        notes.append(f"rows name the right choice by a number in {name}; it was read as counting from 0")
    return LETTERS[place], name, notes


def possible_places(name: str, value, choices: Choices, start: int | None, as_texts) -> list[int] | None:
    """Indices of the choices that a cell may name, the likeliest first; None if its number may count from 0 or 1."""
    if (place := named_place(value, choices)) is not None:
        return [place]
    number, same = as_number(value, choices), places_of(value, choices.texts)
    same = same if len(same) == 1 else []
    if number is None or name in as_texts:
        return same
    if start is None and name not in COUNT_FROM_0:
        return None
    place = number - (start or 0)
    return list(dict.fromkeys([*([place] if place in range(len(choices.texts)) else []), *same]))


def refuse_pick(row: dict, choices: Choices, name: str | None, first: int | None, as_texts) -> None:
    """Raise BadRow for a row that does not say which choice is right; `name`: the column that should."""
    count = len(choices.texts)
    names = f"one of the labels {', '.join(choices.labels)}" if choices.labels else ""
    names = names or f"a letter from A to {LETTERS[count - 1]}, or a choice's text"
    drop = f"--drop {shlex.join(choices.columns)}"
    if name is None:
        filled = ", ".join(name for name in row if not is_empty(row[name]))
        advice = f"--map answer=COLUMN, --kind prompts for questions without answers, or {drop}"
        raise BadRow("answer", f"the columns {filled[:200]}", f"the right choice: {names}", advice)
    if (
        choices.first is None
        and first is None
        and as_number(row[name], choices) is not None
        and name not in COUNT_FROM_0
    ):
        got = f"{row[name]}; no row shows whether numbers count from 0 or from 1"
        raise BadRow(name, got, names, f"--map answer_index={name} if they count from 0, or letters")
    counts = not choices.labels and name not in as_texts
    numbers = f"a number from {first or 0} to {count - 1 + (first or 0)}, " if counts else ""
    advice = f"--on_bad skip if several are right, or {drop}"
    raise BadRow(name, shown(row[name]), f"the right choice: {numbers}{names}", advice)


def cells_of(row: dict, choices: Choices) -> dict:
    """{column: value} of columns that may say which choice is right; a list of one is unpacked."""
    others = [name for name in row if {*words_in(name)} & RIGHT_WORDS and {*words_in(name)} <= PICK_WORDS]
    names = [name for name in dict.fromkeys([*others, *PICK_KEYS]) if name not in choices.columns]
    cells = {name: row[name] for name in names if not is_empty(row.get(name))}
    return {name: cell[0] if isinstance(cell, list) and len(cell) == 1 else cell for name, cell in cells.items()}


def places_of(value, texts: list[str]) -> list[int]:
    """Indices of a value's text in a list; case is ignored if there is no exact match."""
    word = str(value).strip()
    exact = [place for place, text in enumerate(texts) if text == word]
    return exact or [place for place, text in enumerate(texts) if text.lower() == word.lower()]


def named_place(value, choices: Choices) -> int | None:
    """Index of the choice that a value names by label, text or letter, not by number; None without one."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return None
    texts = choices.texts
    columns = choices.columns if len(choices.columns) == len(texts) else ()
    texts_too = [] if as_number(value, choices) is not None else [texts]
    for names in ([*columns], choices.labels, *texts_too):
        if len(places := places_of(value, names)) == 1:
            return places[0]
    letter = r"(?i)(?:option |choice |answer )?[(\[]?([a-z])[\])]?[.:]?(?:[)\s]\s*(.+))?"
    match = re.fullmatch(letter, marked_gold(str(value)), re.DOTALL)  # "The answer is (B)"
    place = LETTERS.index(match[1].upper()) if match and match[1].isascii() else len(texts)
    return place if place < len(texts) and choices.are_lettered and match[2] in (None, texts[place]) else None


def as_number(value, choices: Choices) -> int | None:
    """The number of a choice in a cell; None if it holds none, or if the choices have labels other than letters."""
    word = str(value).strip()
    whole = isinstance(value, int | str) and word.isascii() and word.isdigit() and len(word) < 3
    return int(word) if whole and choices.are_lettered else None


def shown_numbers(row: dict) -> Iterator[tuple[str, int | None]]:
    """(Column, number of the first choice, 0 or 1; None if its numbers are choices' texts) for columns that show it."""
    with contextlib.suppress(BadRow):
        choices = choices_of(row)
        cells = cells_of(row, choices) if choices and choices.right is None else {}
        if any(named_place(value, choices) is not None for value in cells.values()):
            return
        for name, value in cells.items():
            number, same = as_number(value, choices), places_of(value, choices.texts)
            if same and (number or 0) > len(choices.texts):
                yield name, None
            elif not same and number in (0, len(choices.texts)):
                yield name, min(number, 1)


def with_choices(question: str, texts: list[str]) -> str:
    """The question followed by its choices with letters, unless it has them already."""
    marks = [re.match(rf"(?i)\(?{letter}[).:]\s*", text) for letter, text in zip(LETTERS, texts, strict=False)]
    bare = [text[mark.end() :] for text, mark in zip(texts, marks, strict=True)] if all(marks) else texts
    lettered = list(zip(LETTERS, bare, strict=False))
    if all(re.search(rf"\b{letter}[).:]\s*{re.escape(text)}", question) for letter, text in lettered):
        return question
    upper = all(marks) and all(mark[0].isupper() for mark in marks)
    lines = texts if upper else [f"{letter}. {text}" for letter, text in lettered]
    return "\n".join([question.rstrip(), "", *lines])


# --------------------------------------------------------------------------- forms (src/programs/data_loader/forms.py)

ALIASES = re.compile(r"(answer_)?aliases|(alt|alternat(iv)?e|other|additional|acceptable)_answers")
BARE_MARK = re.compile(r"####[^\n#\\]*|\$?\\boxed\{[^{}]*\}\$?")  # only a marked answer


@dataclass(frozen=True)
class FileFacts:
    """What the rows of a file share, beyond their form."""

    mapped: frozenset[str] = frozenset()  # fields that --map fills
    sources: frozenset[str] = frozenset()  # columns that it fills them from
    first_number: int | None = None  # number of the first choice: 0, 1, or None if no row shows it
    number_texts: frozenset[str] = frozenset()  # columns whose numbers are choices' texts
    worked: bool = False  # most answers mark the final one, so one without a mark is cut off


class Shape:
    """A row on its way to the schema, `out`: `take` fetches a field and marks it as used; unused fields are kept."""

    def __init__(self, row: dict, facts: FileFacts):
        self.row, self.used, self.out, self.facts = row, set(), {}, facts
        self.choices = None  # the choices that were added to the prompt
        self.unread: list[str] = []  # columns that look like parts of the question but are not in the prompt
        self.untaken: list[str] | None = None  # if nothing can be graded: the other columns, which may hold answers
        self.notes: list[str] = []
        self.is_ours = False  # this script wrote the row: its columns need no advice
        self.tests_name = "tests"  # the column that the tests came from

    def name(self, names: Iterable[str]) -> str | None:
        """The first of these fields that the row has and that is unused, or None."""
        return next((name for name in names if self.row.get(name) is not None and name not in self.used), None)

    def take(self, names: Iterable[str], expected: str):
        """(Name, value) of the first of these fields, now used; BadRow, which says what was `expected`, if none is."""
        names = tuple(names)
        name = self.name(names)
        if name is None:
            if empty := [name for name in names if name in self.row and name not in self.used]:
                raise BadRow(empty[0], "null or an empty cell", expected)
            present = ", ".join(key for key, item in self.row.items() if item is not None) or "none"
            cells = {key: opened(cell) for key, cell in self.row.items() if key not in Names.ANSWER}
            fields = {
                key: [name for name in (*names, *Names.CHAT) if name in cell]
                for key, cell in cells.items()
                if isinstance(cell, dict)
            }
            paths = [f"{key}.{inner[0]}" for key, inner in fields.items() if inner]
            path = paths[0] if len(paths) == 1 else "COLUMN, or =COLUMN.FIELD for a field of an object"
            advice = f"--map {names[0]}={path}"
            raise BadRow(names[0], f"the columns {present[:200]}", f"{expected}: one of {', '.join(names)}", advice)
        self.used.add(name)
        return name, self.row[name]

    def prompt(self) -> None:
        """Fill in the prompt, with passages before it, and Alpaca's input and choices after it.

        If --map fills the prompt, only passages that it fills too are added.
        """
        self.choices = choices_of(self.row)
        names = Names.CHOICE_PROMPT if self.choices else Names.PROMPT
        if not self.choices and self.row.get("entry_point"):  # what has only a program's imports comes last
            names = sorted(names, key=lambda name: is_preamble(self.row.get(name), self.row["entry_point"]))
        name, value = self.take(names, "a prompt")
        if name == "instruction":
            extra = self.row.get("input")
            if extra is not None and not (isinstance(value, str) and isinstance(extra, str)):
                raise BadRow("input", shown(extra), "text that goes with the instruction")
            value = f"{value}\n\n{extra}" if extra and extra.strip() else value
            self.used.add("input")
        if name != "prompt" and isinstance(self.row.get("history"), list) and self.row["history"]:
            raise BadRow("history", "earlier turns apart from the prompt", "all turns in `messages`", "--drop history")
        self.set_prompt(value, name)
        self.add_passages(isinstance(value, str) and "prompt" not in self.facts.mapped)
        if self.choices:
            message = self.out["prompt"][-1]
            message["content"] = with_choices(message["content"], self.choices.texts)
            if self.choices.columns[0] not in ("choices", "options"):
                self.used.update(self.choices.columns)
                self.out["choices"] = self.choices.texts

    def set_prompt(self, value, name: str) -> None:
        """Fill in the prompt's messages; a column `system` precedes them unless they have a system message."""
        systems = [name for name in self.row if is_system(name)]
        system = self.name(name for name in systems if not is_empty(self.row[name]))
        self.out["prompt"] = as_prompt(value, name, self.row[system] if system else None)
        begun = self.out["prompt"][0]["content"].strip()
        self.used.update(name for name in systems if str(self.row[name] or "").strip() in ("", begun))

    def add_passages(self, all_columns: bool) -> None:
        """Put passages before the last message: of all columns that may hold one, or only of those that --map fills."""
        message, mapped = self.out["prompt"][-1], self.facts.mapped
        names = [name for name in self.row if name not in self.used and (all_columns or name in mapped)]
        passages = passages_before(self.row, message["content"], names, mapped)
        self.used.update(passages)
        for name, text in passages.items():
            if isinstance(self.row[name], str) and self.row[name] != text:
                self.notes.append(f"rows have documents as JSON in {name}, which are text in the prompt")
        if passages:
            message["content"] = "\n\n".join([*passages.values(), message["content"]])

    def answer(self, name: str) -> None:
        """Fill in `answer`: a bare one, or the final answer of a worked solution, whose text is kept as `solution`."""
        text = as_answer(self.row[name], name)
        self.used.add(name)
        marked, thought = gold_of(text), "think>" in text
        if marked is None and self.facts.worked:
            got = f"{shown(text[-60:])} without a final answer"
            raise BadRow(name, got, "#### or \\boxed{…}, as the other rows")
        answer = marked if marked is not None else visible(text).strip() if thought else text
        if not answer.strip():
            raise BadRow(name, f"{shown(text[-60:])}, which ends without an answer", "text after #### or in \\boxed{}")
        if name == "solution" and marked is None and not names_value(answer):
            raise BadRow(name, f"{shown(text[-60:])} without a final answer", "#### or \\boxed{…}", "a field `answer`")
        self.out["answer"] = answer
        if "####" not in text and len({*re.findall(r"\\boxed\{([^{}]+)\}", text)}) > 1:
            self.notes.append(f"rows have several boxes in {name}, of which the last one is taken")
        if name == "solution" and marked is None:
            self.out[name] = text  # TRL's rewards read it
        elif answer != text and not BARE_MARK.fullmatch(text.strip()):
            taken = name != "solution" and self.row.get("solution") is not None
            self.out["answer_text" if taken else "solution"] = text

    def gold(self, name: str) -> None:
        """Fill in a ground truth: an answer, accepted answers, or tests; other objects stay as they are."""
        value = self.row[name]
        if name == "label" and not isinstance(value, bool) and value in (0, 1):
            advice = "--map answer=label if it is the answer, --drop label if not"
            raise BadRow(name, f"{value}, an answer or a class", "a truth value, or text", advice)
        cell = opened(value)
        fields = ground_truth(value, name, self.row) if isinstance(cell, list | dict) else {"answer": value}
        as_text = isinstance(value, str) and "ground_truth" in fields  # of an object that holds no known answer
        stays = as_text and (name == "verification_info" or {*cell} in ({"target", "numbers"}, {"target", "nums"}))
        if (as_text or fields.get("answer") == value) and not stays and not isinstance(value, list):
            parts = cell if isinstance(cell, list) else [cell]
            if isinstance(value, str) and all(isinstance(part, dict) for part in parts) and "answer" not in name:
                got = f"rows have JSON text in {name}, which is taken as the answer"
                self.notes.append(f"{got}; if it is data for a verifier, --map COLUMN={name} keeps it as a column")
            self.answer(name)
        elif "ground_truth" not in fields:
            self.out.update(fields)
            self.used |= {name} - {"verification_info"}

    def finish(self) -> dict:
        """Complete and check `out`: known fields first, then all unused ones that are not null."""
        row, out = self.row, self.out
        if name := media_column(row, "\n".join(message["content"] for message in out["prompt"])):
            advice = f"leaving out the row, or --drop {name} if the text does not need it"
            raise BadRow(name, shown(row[name]), TEXT_ONLY, advice)
        if place := next(filter(None, (placeholder_in(message["content"]) for message in out["prompt"])), None):
            raise BadRow("prompt", f"an image placeholder, {shown(place)}", TEXT_ONLY, "--on_bad skip")
        asked = out["prompt"][-1]["content"]
        if self.choices and "answer" not in out and row.get("answer") is not None:
            pick_letter(self)
        reply = functools.partial(as_reply, prompt=out["prompt"])
        readers = {"answer": as_answer, "tests": functools.partial(read_tests, row=row)}
        readers |= {"completion": reply, "chosen": reply, "rejected": reply}
        for name, read in readers.items():  # these names have one meaning in all forms
            if row.get(name) is not None and name not in self.used and name not in out:
                out[name] = read(row[name], name)
                self.used.add(name)
        for name in ("entry_point", "setup", "source", "id"):
            value = row.get(name)
            if value is None or name in out:
                continue
            if name in ("id", "source") and isinstance(value, int | float):
                value = json.dumps(value)
            if not isinstance(value, str):
                raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text", f"--map other_name={name}")
            out[name] = METHOD.sub(r"\1", value) if name == "entry_point" else value
            self.used.add(name)
        if "tests" in out:
            check_runnable(out, self.tests_name)
        if "completion" in out:
            check_completion(row, asked, out["completion"])
        elif ends_with(asked, str(out.get("answer", ""))):
            self.notes.append("prompts end with their answer; cut it off, unless they ask whether it is right")
        if "id" not in out and isinstance(row.get("task_id"), str | int):
            out["id"] = str(row["task_id"])
        rest = {name: value for name, value in row.items() if name not in self.used and value is not None}
        out |= {name: value for name, value in rest.items() if name not in out}
        if not self.is_ours:
            for name in filter(ALIASES.fullmatch, rest if "answer" in out else ()):
                given = {text.lower() for text in texts_in(out["answer"])}
                if not {text.lower() for text in texts_in(opened(rest[name]))} <= given:
                    self.notes.append(f"rows may have more accepted answers in {name}; answer may be a list of all")
            whole = "\n".join(message["content"] for message in out["prompt"])
            if re.fullmatch(r"\(?[A-J]\)?", str(out.get("answer"))) and not LETTERED.search(whole):
                self.notes.append(LETTER_ALONE)
            self.notes += [f"prompts {line}" for line in odd_prompt(out, out["prompt"])]
            self.notes += calls_on_stdin(out.get("tests"), self.tests_name, row, asked)
            known = {*self.facts.mapped, *self.facts.sources, *(self.choices.columns if self.choices else ())}
            known |= {"tools"} if {"completion", "chosen"} & out.keys() else set()  # trainers on replies render them
            rest = {name: value for name, value in rest.items() if name not in known}
            self.unread = unread_parts(rest, out["prompt"])
            if not {"answer", "tests", "completion", "chosen", "ground_truth"} & out.keys():
                self.look_for_answers(rest)
        return out

    def look_for_answers(self, rest: dict) -> None:
        """List the columns, or fields of objects, that may hold answers or tests; note responses to compare."""
        self.untaken, responses = [], compared(self.row)
        if responses:
            note = f"rows have responses to compare in {', '.join(responses)}, which no form reads"
            self.notes.append(f"{note}; for preferences, --map chosen=COLUMN rejected=COLUMN")
        for name, value in ((name, value) for name, value in rest.items() if name not in responses):
            cell = opened(value) if isinstance(opened(value), dict) else {}
            known = [f"{name}.{key}" for key in (*Names.ANSWER, *Names.TESTS) if not is_empty(cell.get(key))]
            self.untaken += known or [name] * isinstance(value, str | int | list | dict)


def compared(row: dict) -> list[str]:
    """Columns of several responses: response_a and response_b, chosen_x and rejected_x, a list `completions`."""
    filled = [name for name, value in row.items() if isinstance(value, str | list | dict) and not is_empty(value)]
    stems = {name: Names.COMPARED.sub(r"\1", name.lower()) for name in filled if Names.COMPARED.search(name.lower())}
    several = [name for name in stems if [*stems.values()].count(stems[name]) > 1]
    answers = row.get("completions")
    return several or ["completions"] * (isinstance(answers, list) and len(answers) > 1)


def check_pick(row: dict) -> None:
    """Raise BadRow for an answer, or a better completion, that only names one of several responses to compare."""
    names = {text.lower() for name in compared(row) for text in (name, name[-1])}
    for name in ("answer", "chosen"):
        if str(row.get(name)).lower() in names:
            got = f"{shown(row[name])}, which seems to name a response in another column"
            raise BadRow(name, got, "the text of the response", "copying it, or --drop for the other columns")


def as_prompts(shape: Shape) -> None:
    """A prompt, and what else `finish` finds; BadRow for a single message of a conversation."""
    for names in Names.MESSAGES_ALONE:
        if shape.row.keys() >= {*names}:
            got, advice = f"one message of a conversation ({', '.join(names)})", "--drop for these columns"
            raise BadRow(names[0], got, "the whole conversation in `messages`", advice)
    check_pick(shape.row)
    shape.prompt()


def as_math(shape: Shape) -> None:
    """A problem and its final answer, bare or in a worked solution; a short answer is preferred to a long text."""
    shape.prompt()
    row, names = shape.row, [name for name in Names.ANSWER if shape.name([name])]
    if not names:
        shape.take(Names.ANSWER, "an answer")
    short = [name for name in names[1:] if name not in ("label", "solution") and is_short(row[name])]
    if short and names[0] == "answer" and not is_short(row["answer"]) and not marks_answer(row["answer"]):
        shape.gold(short[0])
        shape.used.add("answer")
        shape.out["answer_text" if row.get("solution") is not None else "solution"] = row["answer"]
    else:
        shape.gold(names[0])
        taken, others = str(shape.out.get("answer")), [name for name in names[1:] if name != "solution"]
        others = [name for name in others if str(gold_of(str(row[name])) or row[name]).strip() != taken]
        shape.notes += [f"rows have another gold answer in {name}; {names[0]} is taken" for name in others]


def as_choices(shape: Shape) -> None:
    """A question with its choices, which go into the prompt, and the letter of the right one."""
    shape.prompt()
    if shape.choices is None:
        expected = "a column `choices` or `options`: a list of 2 to 26 texts, {text, label}, or {A: text}"
        raise BadRow("choices", "no choices", expected, "--map choices=COLUMN")
    pick_letter(shape)


def pick_letter(shape: Shape) -> None:
    """Fill in the letter of the right choice."""
    shape.out["answer"], name, notes = picked(
        shape.row, shape.choices, shape.facts.first_number, shape.facts.number_texts
    )
    shape.used.add(name)
    shape.notes += notes


def as_response(shape: Shape) -> None:
    if shape.name(Names.CHAT) and not shape.name(["prompt"]):
        as_conversation(shape)
        if "completion" not in shape.out:
            raise BadRow("messages", "no assistant turn at the end", "a conversation that ends with the assistant")
        return
    shape.prompt()
    name, value = shape.take(Names.RESPONSE, "a completion")
    shape.out["completion"] = as_reply(value, name, shape.out["prompt"])


def as_conversation(shape: Shape) -> None:
    """A conversation: a last assistant turn is the completion, what precedes it the prompt."""
    name, value = shape.take(Names.CHAT, "messages")
    shape.used.add("prompt")  # if it is there too, it repeats the first turn
    messages = read_messages(without_placeholder(value), name)
    check_order(messages, name)
    reply = [messages.pop()] if messages[-1]["role"] == "assistant" else None
    shape.set_prompt(messages, name)
    shape.add_passages(False)
    text = shape.row.get("solution")
    if reply:
        shape.out["completion"] = reply
        if marks_answer(text) and shape.row.get("answer") is None:
            shape.notes.append("rows mark a final answer in solution; for rewards, --kind math takes it as answer")
        return
    check_pick(shape.row)
    if gold := shape.name(Names.ANSWER if marks_answer(text) or names_value(text) else Names.GOLD):
        shape.gold(gold)  # in Tulu 3's data for verifiable rewards `ground_truth`, in ms-swift's `solution`


def as_preferences(shape: Shape) -> None:
    """A better and a worse completion, with the prompt in a column or as their common beginning."""
    _, chosen = shape.take(["chosen"], "the better completion")
    _, rejected = shape.take(["rejected"], "the worse completion")
    names = {*shape.row, *(key for cell in shape.row.values() if isinstance(cell, dict) for key in cell)}
    names |= {name[-1] for name in names if Names.COMPARED.search(name.lower())}  # response_a, response_1
    if {str(chosen), str(rejected)} <= names and not choices_of(shape.row):
        got = f"{shown(chosen)}, which seems to name a response in another column"
        advice = "copying both texts into `chosen` and `rejected`, or --drop for the other columns"
        raise BadRow("chosen", got, "the text of the response", advice)
    if shape.name(Names.PROMPT):
        shape.prompt()
    elif shape.name(Names.CHAT) and not (isinstance(chosen, list) and chosen[:1] == rejected[:1]):
        as_conversation(shape)  # ShareGPT's: two messages may follow
        if shape.out.pop("completion", None):
            raise BadRow("conversations", "a last assistant turn", "a conversation that chosen and rejected continue")
    else:
        shared, chosen, rejected = split_prompt(chosen, rejected)
        shape.set_prompt(shared, "chosen")
    pairs = (("chosen", chosen), ("rejected", rejected))
    better, worse = (as_reply(value, name, shape.out["prompt"]) for name, value in pairs)
    if better == worse:
        raise BadRow("rejected", "the same as chosen", "a worse completion")
    if type(better) is not type(worse):
        raise BadRow("rejected", f"{type(worse).__name__} beside {type(better).__name__}", "both in one form")
    shape.out["chosen"], shape.out["rejected"] = better, worse


def as_ours(shape: Shape) -> None:
    """A row that this script wrote: checked, otherwise unchanged."""
    shape.is_ours = True
    shape.out["prompt"] = as_prompt(shape.row["prompt"], "prompt")
    shape.used.add("prompt")


def as_verl(shape: Shape) -> None:
    """A row of verl's five columns, kept for --for verl; its ground truth becomes the answer or tests."""
    row, out = shape.row, shape.out
    row |= {name: opened(row[name]) for name in ("reward_model", "extra_info") if name in row}
    model, extra = row["reward_model"], row.get("extra_info")
    gold = model.get("ground_truth") if isinstance(model, dict) else None
    out["prompt"] = as_prompt(row["prompt"], "prompt")
    out["source"] = as_answer(row["data_source"], "data_source")
    shape.used |= {"prompt", "data_source"}
    if gold is None and not (isinstance(model, dict) and model.get("style") == "model"):
        raise BadRow("reward_model", shown(model), 'an object such as {"ground_truth": "42"}')
    if not isinstance(extra, dict | None):
        raise BadRow("extra_info", shown(extra), "an object", "storing it as an object instead of text")
    if gold not in (None, ""):
        out.update(ground_truth(gold, "reward_model.ground_truth", row))
    if extra and isinstance(extra.get("index"), int | str) and row.get("id") is None:
        out["id"] = str(extra["index"])
    for name in ("answer", "tests", "ground_truth", "source"):
        if name in out and row.get(name) is not None:  # a column of the row's own beside verl's
            out[f"column:{name}"] = row[name]
            shape.used.add(name)


FORMS = {
    "prompts": as_prompts,
    "conversations": as_conversation,
    "prompt_response": as_response,
    "preferences": as_preferences,
    "math": as_math,
    "choices": as_choices,
    "code": as_code,
    "ours": as_ours,
    "verl": as_verl,
}


# ----------------------------------------------------------------- form names (src/programs/data_loader/form_names.py)

TEST_SOURCE = re.compile(r"^(def (check\(|test)|assert\b|class \w+\(.*TestCase)", re.MULTILINE)


def form_of(row: dict) -> str | None:
    """A row's form by its fields: a kind, `ours`, `verl`, or None."""
    names = tuple(name for name in present(row) if name != "target" or not is_countdown(row))
    form = form_of_fields(names, isinstance(row.get("prompt"), list))
    if form in (None, "prompts", "math") and choice_columns(row) and {*names} & {*Names.CHOICE_PROMPT}:
        return "choices"
    about = opened(row.get("verification_info"))  # PrimeIntellect's: tests, or an answer
    if form == "math" and isinstance(about, dict) and about.get("test_cases") is not None:
        return "code"
    if form == "prompts" and repeats_prompt(row):
        return "conversations"  # UltraChat's
    if form == "prompts":
        if any(marks_answer(row.get(name)) for name in ("answer", "solution")) or names_value(row.get("solution")):
            return "math"
        if isinstance(row.get("test"), str) and TEST_SOURCE.search(row["test"]):
            return "code"  # HumanEval's without entry_point
    return form


def is_countdown(row: dict) -> bool:
    """Whether `target` belongs to the Countdown task: an expression of `nums`, or of `numbers`, must reach it."""
    if row.get("nums") is not None:
        return True
    asked = str(next((row[name] for name in Names.PROMPT if row.get(name) is not None), ""))
    named = re.search(rf"(?<![\d.]){re.escape(str(row['target']))}(?!\.?\d)", asked)
    return row.get("numbers") is not None and named is not None


def present(row: dict) -> tuple[str, ...]:
    return tuple(name for name, value in row.items() if value is not None)


def repeats_prompt(row: dict) -> bool:
    """Whether the prompt only repeats the first user turn of a conversation in another column."""
    turns = next((row[name] for name in Names.CHAT if isinstance(row.get(name), list)), [])
    asked = [x for x in turns if isinstance(x, dict) and x.get("role", x.get("from")) in ("user", "human")]
    texts = [turn.get("content", turn.get("value")) for turn in asked[:1]]
    return isinstance(row.get("prompt"), str) and row["prompt"] in texts


@functools.lru_cache(4096)
def form_of_fields(names: tuple, prompt_is_chat: bool) -> str | None:
    """The first form that fits these names, from the most special to the most general."""
    has = set(names)
    if prompt_is_chat and {"prompt", "source", "id"} <= has:
        return "ours"
    if {"prompt", "data_source", "reward_model"} <= has:
        return "verl"
    if {"chosen", "rejected"} <= has:
        return "preferences"
    asks = has & set(Names.PROMPT)
    if asks and (has & set(Names.TESTS[:-1]) or {"test", "entry_point"} <= has):
        return "code"
    if has & set(Names.CHAT) and "prompt" not in has:
        return "conversations"
    if asks and has & {"completion", "response", "output"}:
        return "prompt_response"
    golds = has & set(Names.GOLD) - ({"label"} if asks == {"text"} else set())  # a text's label is a class
    if asks and golds - ({"answer"} if not has & {"question", "problem"} else set()):  # a solution may be a program
        return "math"
    return "prompts" if asks else None


def kind_of(row: dict) -> str:
    marks = (("tests", "code"), ("chosen", "preferences"), ("completion", "prompt_response"), ("answer", "math"))
    return next((kind for name, kind in marks if name in row), "prompts")


def normalise(row: dict, kind: str = "auto") -> dict:
    """Return a raw row converted to the schema, or raise BadRow; the row itself is not changed."""
    check_kind(kind)
    if not isinstance(row, dict):
        raise BadRow("row", f"{type(row).__name__} {shown(row)}", "an object with named fields")
    row = known_names(with_chats(as_plain(row)))
    return convert(row, form_of(row) or "prompts" if kind == "auto" else kind, FileFacts()).out


def known_names(row: dict) -> dict:
    """A row with known column names, such as `question` for `Question`; OpenBookQA's question object is unpacked."""
    question = row.get("question")
    if isinstance(question, dict) and isinstance(question.get("stem"), str):
        row = {**{name: value for name, value in row.items() if name != "question"}, **question}
        row["question"] = row.pop("stem")
    new = new_names(tuple(row))
    return {new.get(name, name): value for name, value in row.items()} if new else row


@functools.lru_cache(4096)
def new_names(names: tuple[str, ...]) -> dict[str, str]:
    """{name: known name that differs in case, blanks or dashes only}; {} for rows of this script and of verl."""
    if {"prompt", "source", "id"} <= {*names} or {"data_source", "reward_model"} <= {*names}:
        return {}
    known = {*Names.PROMPT[:5], *Names.ANSWER, *READ_FIRST, *CHOICE_KEYS, *Names.RESPONSE}
    known |= {"correct", "answer_key", "chosen", "rejected"}
    plain_names = {plain_name(name): name for name in reversed(names)}
    return {name: plain for plain, name in plain_names.items() if plain in known and plain not in names}


def convert(row: dict, form: str, facts: FileFacts) -> Shape:
    """Convert a row of a known form; `out` of the result is the row in the schema."""
    if form in KINDS:  # files of this script and of verl may be given with any kind
        by_fields = form_of_fields(present(row), True)
        form = by_fields if by_fields in ("ours", "verl") and isinstance(row.get("prompt"), list) else form
    shape = Shape(dict(row), facts)
    FORMS[form](shape)
    shape.finish()
    return shape


def check_kind(kind: str) -> None:
    known = ["auto", *KINDS]
    need(kind in known, f"got kind {kind!r}; expected one of {', '.join(known)}{suggest(str(kind), known)}")


# ----------------------------------------------------------------------- writing (src/programs/data_loader/writing.py)

# arguments that TRL itself passes to reward functions
TRL_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
VERL_OUTSIDE = ("agent_name", "__rollout_n__")  # columns that verl reads beside its five
DATE_LIKE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?Z?")
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}  # str.splitlines would split there
MESSAGE_FIELDS = ("prompt", "completion", "chosen", "rejected")
VERL_OBJECTS = ("reward_model", "tools_kwargs", "interaction_kwargs")  # never JSON text
LOOSE = (*MESSAGE_FIELDS, *VERL_OBJECTS)  # objects here may differ in keys, as readers take null for absent


def trl_row(row: dict) -> dict:
    """A row as TRL's trainers read it, with completions as messages, like the prompt."""
    clash = [name for name in TRL_ARGUMENTS if name in row]
    advice = f"try --map old_{clash[0]}={clash[0]}" if clash else ""
    need(not clash, f"got the column {clash[:1]}, a name that TRL itself passes to rewards; expected another; {advice}")
    texts = [name for name in ("completion", "chosen", "rejected") if isinstance(row.get(name), str)]
    return {**row, **{name: [{"role": "assistant", "content": row[name]}] for name in texts}}


def verl_row(row: dict, index: int, split: str, data_source: str = "") -> dict:
    """A row as verl's RLHFDataset reads it, with all that verl has no column for in extra_info.

    A row with `extra_info` or `reward_model` is in verl's form already and keeps its keys in place.
    """
    kind = kind_of(row)
    head = {"data_source": data_source or row.get("source") or "data", "prompt": row["prompt"]}
    head["ability"] = kind if kind in ("math", "code") else "chat"
    if isinstance(row.get("extra_info"), dict) or isinstance(row.get("reward_model"), dict):
        return head | own_verl_columns(row, index, split)
    gold, field, truth = ground_truth_of(row)
    outside = {name: row[name] for name in VERL_OUTSIDE if name in row}
    extra = {info_key(name): value for name, value in row.items() if name not in ("prompt", gold, *outside)}
    extra = {"index": index, "split": split, "ground_truth_field": field, **extra}
    return {**head, "reward_model": {"style": "rule", "ground_truth": truth}, **outside, "extra_info": extra}


def own_verl_columns(row: dict, index: int, split: str) -> dict:
    """The original columns of a row in verl's form, with its present answer or tests as ground truth."""
    for name in ("reward_model", "extra_info"):
        got = f"got the column {name} {str(row.get(name))[:60]!r}, a name of verl's"
        need(isinstance(row.get(name), dict | None), f"{got}; expected an object; try --map old_{name}={name}")
    extra, model = row.get("extra_info"), row.get("reward_model") or {"style": "rule"}
    truth = model.get("ground_truth")
    held = ground_truth(truth, "reward_model.ground_truth", row) if truth not in (None, "") else {}
    if "ground_truth" not in held and any(row.get(name) != held.get(name) for name in ("tests", "answer")):
        model = {**model, "ground_truth": ground_truth_of(row)[2]}
    if "reward_model" not in row:
        extra = {"index": index, "split": split, **(extra or {})}
    derived = re.fullmatch(r".*:\d+", row.get("id", "")) or row.get("id") == str((extra or {}).get("index"))
    left = {"prompt", "source", "tests", "answer", *held, *(["id"] if derived else []), *VERL_COLUMNS} - {"ability"}
    others = {name.removeprefix("column:"): value for name, value in row.items() if name not in left}
    return {"reward_model": model, **({} if extra is None else {"extra_info": extra}), **others}


def write_rows(rows: Iterable[dict], path, target: str = "ours", *, split: str = "train", data_source: str = "") -> int:
    """Write normalised rows to a .jsonl or .parquet file and return their number; the file appears whole or not at all.

    Args:
        target: "ours", "trl" or "verl"; load_rows reads each of them back.
        split: verl's extra_info.split.
        data_source: verl's data_source of all rows; "" takes each row's source.

    Raises:
        UserError: the path, the target or a column cannot be used.
    """
    rows, path = list(rows), Path(path)
    check_out(path, target)
    with new_file(path) as temporary:
        fill_file(rows, temporary, path.suffix, target, split, data_source)
    return len(rows)


def check_out(path: Path, target: str) -> None:
    """Raise UserError unless the target is known and the path can be written to."""
    need(target in TARGETS, f"got the target {target!r}; expected one of {', '.join(TARGETS)}")
    need(path.suffix in (".jsonl", ".parquet"), f"got the output {path}; expected a name ending in .jsonl or .parquet")
    need(path.parent.is_dir(), f"got the output {path}; expected a folder that exists; try mkdir -p {path.parent}")
    need(not path.is_dir(), f"got the output {path}, a folder; expected the name of a file")


def fill_file(rows: list[dict], path: Path, suffix: str, target: str, split: str, data_source: str) -> int:
    """Write rows to a file in the target's form; returns how many of verl's rows have no ground truth."""
    if target == "verl":
        rows = [verl_row(row, index, split, data_source) for index, row in enumerate(rows)]
    elif target == "trl":
        rows = [trl_row(row) for row in rows]
    if suffix == ".parquet":
        write_parquet(rows, path, target)
    else:
        with open(path, "w", encoding="utf-8", newline="\n") as f:
            f.writelines(ENCODER.encode(row).translate(LINE_ENDS) + "\n" for row in rows)
        if target != "ours":
            warn_of_dates(rows)
    models = [row.get("reward_model") or {} for row in rows] if target == "verl" else []
    lacking = sum(model.get("ground_truth") in (None, "") and model.get("style") != "model" for model in models)
    if lacking:
        got = f'{lacking} of {len(rows)} rows have no ground truth: without answer and tests verl gets ""'
        say(f"warning: {got}; try --map answer=COLUMN")
    return lacking


def warn_of_dates(rows: list[dict]) -> None:
    """Warn about text columns that hold only dates, which pyarrow's JSON reader turns into datetimes."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        objects = [row[name] for name in ("extra_info", "reward_model") if isinstance(row.get(name), dict)]
        for name, value in itertools.chain(*(cells.items() for cells in [row, *objects])):
            if isinstance(value, str):
                texts.setdefault(name, []).append(value)
    if names := ", ".join(name for name, values in texts.items() if all(map(DATE_LIKE.fullmatch, values))):
        say(f"warning: datasets will read {names} as dates, as every value looks like one; try a .parquet output")


def write_parquet(rows: list[dict], path: Path, target: str) -> None:
    """Write rows as parquet, with verl's `extra_info` as an object of columns.

    If parquet would change a column of `extra_info` (objects with different keys, numbers beside text), it becomes JSON
    text and is listed in `json_columns`, where rewards look. UserError if another column would change.
    """
    import pyarrow
    import pyarrow.parquet

    inner = [row.get("extra_info") or {} for row in rows] if target == "verl" else []
    outer = [{name: row[name] for name in row if not (inner and name == "extra_info")} for row in rows]
    columns, parts, coded = columns_of(outer), columns_of(inner), []
    for name, column in columns.items():
        got = f"got {name} with values that parquet would change"
        need(column is not None, f"{got}; expected values of one type; try a .jsonl output")
    for name in [name for name, column in parts.items() if column is None]:
        need(name not in VERL_OBJECTS, f"got {name} that parquet would change; try a .jsonl output")
        coded.append(name)
        texts = [None if row.get(name) is None else ENCODER.encode(row[name]) for row in inner]
        parts[name] = pyarrow.array(texts, pyarrow.string())
    if coded:
        marks = [[*coded, *(row.get("json_columns") or ())] for row in inner]
        parts["json_columns"] = pyarrow.array(marks, pyarrow.list_(pyarrow.string()))
    if parts:
        columns["extra_info"] = pyarrow.StructArray.from_arrays(list(parts.values()), list(parts))
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def columns_of(rows: list[dict]) -> dict:
    """{column: pyarrow array, or None if parquet would change its values}."""
    import pyarrow

    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            array = pyarrow.array(values)
            back = array.to_pylist()
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
            array = back = None
        same = back == values or (name in LOOSE and bare(back) == bare(values))
        fits = same and "struct<>" not in str(array.type)  # parquet has no object without fields
        if fits and pyarrow.types.is_null(array.type):
            array = pyarrow.nulls(len(values), pyarrow.string())
        columns[name] = array if fits else None
    return columns


@contextlib.contextmanager
def new_file(path: Path):
    """A temporary file beside `path` that replaces it if the block succeeds and is deleted if not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def split_size(text: str, count: int) -> tuple[str, int]:
    """(Name, rows) of --split NAME=N or NAME=SHARE; the name may be left out and is then eval."""
    name, _, size = text.rpartition("=") if "=" in text else ("eval", "", text)
    try:
        number = int(size) if size.isdigit() else round(float(size) * count)
    except (ValueError, OverflowError):
        number = 0
    good = re.fullmatch(r"\w+", name) and name != "rejected" and 0 < number < count
    expected = f"expected NAME=N with N from 1 to {count - 1}, or a share, or one of these alone; try --split 0.1"
    need(good, f"got --split {text} of {count} rows; {expected}")
    return name, number


# ----------------------------------------------------------------- row reader (src/programs/data_loader/row_reader.py)

FILE_FORMS = {**SUFFIXES, ".txt": "txt"}
# data in forms that are not read; what `datasets` writes beside its data
UNREAD = re.compile(r"\.(arrow|feather|xlsx?|ods|zst|zip|bz2|xz|7z|tar|tgz|pkl|pickle|db|sqlite3?|orc|avro)$")
CARDS = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
GOLD_FIELDS = ("answer", "tests", "completion", "chosen", "rejected")


def expand(sources) -> list[str]:
    """The files behind paths, folders and globs, in order; hub ids and `-` stay as they are."""
    files = []
    for source in map(str, [sources] if isinstance(sources, str | Path) else sources):
        path, known = Path(source), format_of(source)
        if path.is_dir() or (any(mark in source for mark in "*?[") and not path.exists()):
            inside = sorted(map(str, path.rglob("*")) if path.is_dir() else glob.glob(source, recursive=True))
            inside = [x for x in inside if not any(p.startswith(".") for p in Path(x).parts[len(path.parts) :])]
            files += readable(source, inside)
            continue
        exists = source == "-" or path.exists() or (is_hub_id(source) and not known)
        need(exists, f"got {source}, which is not a file, folder or glob; expected one, or a hub id: openai/gsm8k:main")
        expected = f"a name that ends in {', '.join(FILE_FORMS)}, also with .gz"
        need(known or not path.exists(), f"got {source}; expected {expected}; try unpacking or renaming it")
        files.append(source)
    need(files, "got no input; expected files, folders, globs, hub ids or `-` for stdin")
    return files


def readable(source: str, inside: list[str]) -> list[str]:
    """The data files of a folder or glob; a note names those in other forms, UserError if one is a part of the data."""
    stems = {file: str(Path(file).with_name(Path(file).name.partition(".")[0])) for file in inside}
    files = [x for x in inside if format_of(x) and Path(x).is_file() and Path(x).name not in CARDS]
    unread = [x for x in inside if UNREAD.search(x.lower())]
    names = ", ".join(Path(x).name for x in unread[:5])
    advice = f"; try exporting {names}, as by datasets.load_from_disk(…).to_json(FILE)" if unread else ""
    need(files, f"got {source} without a data file; expected names such as x.jsonl or x.csv.gz{advice}")
    read = {stems[file] for file in files}
    series = {re.sub(r"\d+", "0", stem) for stem in read}
    parts = [x for x in unread if stems[x] not in read and re.sub(r"\d+", "0", stems[x]) in series]
    expected = "all parts of one set in forms that are read"
    need(not parts, f"got {parts[:1]} beside {files[0]}; expected {expected}; try unpacking it, or naming the files")
    if unread:
        say(f"warning: {source}: left out {names}; if they hold rows, export them as JSONL")
    return files


def format_of(name: str) -> str | None:
    """The format that a file's ending names, `.gz` aside, or None."""
    path = Path(name.lower())
    return FILE_FORMS.get(Path(path.stem).suffix if path.suffix == ".gz" else path.suffix)


def distinct_names(files: list[str]) -> dict[str, str]:
    """{input: default `source` of its rows}: its stem, or its path if several inputs have that stem."""
    names = {}
    for file in files:
        path = Path(file)
        stem = Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
        names[file] = "stdin" if file == "-" else stem if path.exists() else file
    counts = Counter(names.values())
    return {file: name if counts[name] == 1 else file for file, name in names.items()}


@dataclass
class Settings:
    """How rows are read: the keyword arguments of load_rows."""

    kind: str = "auto"
    mapping: dict = field(default_factory=dict)
    drop: tuple = ()
    system_prompt: str | None = None
    on_bad: str = "fail"
    limit: int | None = None
    dedup: bool = False
    encoding: str | None = None

    def __post_init__(self):
        check_kind(self.kind)
        self.mapping, self.drop = dict(self.mapping or {}), tuple(self.drop)
        for field_name, source in self.mapping.items():
            need(field_name and source, f"got the mapping {field_name!r}={source!r}; expected field=source")
        need(self.on_bad in ("fail", "skip"), f"got on_bad {self.on_bad!r}; expected fail or skip")
        need(self.limit is None or self.limit > 0, f"got limit {self.limit}; expected 1 or more")
        try:
            if self.encoding and codecs.lookup(self.encoding).name == "utf-8":
                self.encoding = None  # the default, which drops a byte order mark
        except LookupError as error:
            raise UserError(f"got encoding: {error}; expected a name that Python knows, such as cp1252") from None


def at_path(row: dict, source: str, raw: dict[str, str]):
    """The value of a column or at a dotted path inside it, or None. `raw`: {known name: the row's own name}."""
    head, *path = [source] if source in row or source in raw else source.split(".")
    value = row
    for key in [raw.get(head, head), *path]:
        value = opened(value)
        if isinstance(value, list) and key.isdecimal():
            value = dict(enumerate(value)).get(int(key))
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def remapped(row: dict, settings: Settings) -> dict:
    """A row as JSON types after --drop and --map, with known column names, and messages decoded from JSON text."""
    raw = {known: name for name, known in new_names(tuple(row)).items()}  # users see known names in messages
    mapping = settings.mapping
    drop = {*settings.drop, *(raw.get(name, name) for name in settings.drop)}
    row = as_plain({name: value for name, value in row.items() if name not in drop})
    mapped = {name: at_path(row, source, raw) for name, source in mapping.items()}
    if name := next((name for name, value in mapped.items() if value is None), ""):
        hint = suggest(mapping[name], list(row)).replace("; try", ", perhaps")
        got, expected = f"the columns {', '.join(row)[:200]}", f"the column {mapping[name]!r} of --map"
        raise BadRow(name, got, expected, f"--map {name}=COLUMN{hint}")
    for source in mapping.values():
        row.pop(raw.get(source, source), None)
    paths = [source.split(".")[0] for source in mapping.values()]
    if name := next((name for name in mapped if row.get(name) is not None and name not in paths), ""):
        raise BadRow(name, f"a column of that name beside --map {name}", "only one of them", f"--drop {name}")
    return known_names(with_chats({**mapped, **{name: value for name, value in row.items() if name not in mapped}}))


class RowReader:
    """Iterates over the good rows of all inputs, converted, in order; lists the bad ones in `rejected`.

    At any time, `counts` has read = kept + rejected + deduplicated.
    """

    def __init__(self, sources, settings: Settings):
        self.files, self.settings, self.rows, self.rejected = expand(sources), settings, [], []
        self.names, self.current = distinct_names(self.files), ""
        self.counts = {"read": 0, "kept": 0, "rejected": 0, "deduplicated": 0}
        self.kinds, self.why, self.seen, self.notes = Counter(), "", set(), Counter()
        self.facts, self.unread = FileFacts(), Counter()  # of the current file; {column of a question: rows}
        self.no_answer, self.untaken = 0, Counter()  # rows without an answer; {column that they have: rows}

    @property
    def kind(self) -> str:
        """The kind of all rows so far, or `mixed`."""
        return "mixed" if len(self.kinds) > 1 else next(iter(self.kinds), "prompts")

    def __iter__(self) -> Iterator[dict]:
        return itertools.islice(itertools.chain.from_iterable(map(self.rows_of, self.files)), self.settings.limit)

    def rows_of(self, file: str) -> Iterator[dict]:
        name, before = self.names[file], self.counts["read"]
        label = "stdin" if file == "-" else file
        known = [column.partition(".")[0] for column in self.settings.mapping.values()]
        records = file_records(file, format_of(file), self.settings.encoding, known)
        if format_of(file) in ("csv", "tsv"):  # an empty cell is absent
            records = ((n, {k: v or None for k, v in x.items()} if isinstance(x, dict) else x) for n, x in records)
        form, records = self.detect(label, records)
        for number, record in records:
            self.counts["read"] += 1
            self.current = name
            try:
                row = self.read(record, form)
            except RowFlaw as error:
                self.counts["rejected"] += 1
                try:
                    json.dumps(record, allow_nan=False)
                except (TypeError, ValueError, RecursionError):
                    record = shown(record)
                self.rejected.append({"file": label, "line": number, "row": record, **error.parts})
                continue
            row.setdefault("source", name)
            row.setdefault("id", f"{name}:{number}")
            if self.settings.dedup:
                mark = digest([row.get(name) for name in ("prompt", *GOLD_FIELDS)])
                if mark in self.seen:
                    self.counts["deduplicated"] += 1
                    continue
                self.seen.add(mark)
            self.counts["kept"] += 1
            yield row
        if self.counts["read"] == before:
            say(f"warning: {label} has no rows")

    def read(self, record: dict | RowFlaw, form: str) -> dict:
        if isinstance(record, RowFlaw):
            raise record
        settings = self.settings
        row = remapped(record, settings)
        if settings.kind == "auto":
            form = self.agreed(form, form_of(row), row)
        shape = convert(row, form, self.facts)
        row = shape.out
        self.unread.update(shape.unread)
        self.no_answer += shape.untaken is not None
        self.untaken.update(shape.untaken or ())
        self.notes.update(shape.notes)
        if settings.system_prompt:
            if row["prompt"][0]["role"] in ("system", "developer"):
                self.notes["rows kept their own system prompt"] += row["prompt"][0]["content"] != settings.system_prompt
            else:
                row["prompt"] = [{"role": "system", "content": settings.system_prompt}, *row["prompt"]]
        return row

    def agreed(self, form: str, row_form: str | None, row: dict) -> str:
        """The form to read a row by, from the forms of its file and of its fields; BadRow if these contradict."""
        if row_form in ("ours", "verl"):
            return row_form
        if row_form is None:  # the conversion says what is missing
            return "prompts" if form in ("ours", "verl") else form
        only_asks = row_form == "prompts" and form not in ("ours", "verl")
        if row_form == form or only_asks or (row_form, form) == ("math", "prompts"):
            return form  # if the row lacks what the form needs, the conversion says what
        got = f"a row of {row_form}, with the columns {', '.join(row)[:200]}"
        is_both = "verification_info" in row and {row_form, form} == {"math", "code"}
        advice = "one file per kind" + ", or --kind math, which reads answers and tests in verification_info" * is_both
        raise BadRow("row", got, f"{form}, like the other rows", advice)

    def detect(self, label: str, records: Iterator) -> tuple[str, Iterator]:
        """(Form of a file, all its records): the given kind, or the form of most of the first rows; notes why."""
        settings, head = self.settings, list(itertools.islice(records, HEAD))
        forms, kinds, fields, numbers, marked = Counter(), Counter(), {}, set(), 0
        for row in (row for _, row in head if isinstance(row, dict)):
            with contextlib.suppress(RowFlaw):
                row = remapped(row, settings)
                if not (form := form_of(row)):
                    continue
                forms[form] += 1
                fields.setdefault(form, [name for name in row if row[name] is not None])
                first = next((row[name] for name in Names.ANSWER if row.get(name) is not None), None)
                marked += form == "math" and marks_answer(opened(first))
                numbers.update(shown_numbers(row))
                if form in ("ours", "verl"):
                    kinds[kind_of(convert(row, form, FileFacts()).out)] += 1
        sources = frozenset(plain_name(source.partition(".")[0]) for source in settings.mapping.values())
        texts = frozenset(name for name, start in numbers if start is None)
        start = min((start for name, start in numbers if name not in texts), default=None)
        form, why = settings.kind, "as asked for"
        if form == "auto":  # in a tie, a form with answers wins
            form = max(forms, key=lambda form: (forms[form], form != "prompts"), default="prompts")
            names = ", ".join(fields.get(form, [])[:8])
            why = f"as {forms[form]} of the first {len(head)} rows have the fields {names}"
            why = why if forms else "as no row has the fields of another kind"
        worked = form == "math" and 2 * marked > (forms[form] if settings.kind == "auto" else len(head))
        self.facts = FileFacts(frozenset(settings.mapping), sources, start, texts, worked)
        self.kinds.update((kinds or ["prompts"]) if form in ("ours", "verl") else [form])
        self.why += f"{'; ' if self.why else ''}{label}: {form}, {why}"
        return form, itertools.chain(head, records)

    def error(self) -> UserError | None:
        """The error for bad rows that are not skipped, or for inputs without a usable row, with the first bad one."""
        if self.rejected and self.settings.on_bad == "fail":
            return BadRows(self.rejected)
        if self.counts["kept"]:
            return None
        inputs, bad = " ".join(self.files[:5]) + (" …" if len(self.files) > 5 else ""), len(self.rejected)
        counts = f"{self.counts['read']} read" + (f", {bad} bad" if bad else "")
        got = f"got no usable row from {inputs} ({counts}); expected at least one"
        first = self.rejected[0] if bad else None
        return UserError(f"{got}; the first bad one: {first['file']}:{first['line']}: {flaw_of(first)}" if bad else got)

    def say_notes(self) -> None:
        """Warn about columns that seem to belong to the question but are in no prompt; print the notes on rows."""
        read = self.counts["read"]
        for name, count in self.unread.items():
            moved = f"--map {shlex.quote(f'background={name}')}, which puts text or documents before the question, or "
            before = "" if is_media(name) or is_system(name) else moved
            before += "an environment that has these tools, or " if name in TOOLS else ""
            got = f"got the column {name}, which looks like a part of the question but is in no prompt"
            say(f"warning: {got} ({count} of {read} rows); try {before}--drop {shlex.quote(name)}")
        if self.untaken or 0 < self.no_answer < read or (self.no_answer and "math" in self.kinds):
            columns = ", ".join(self.untaken)[:200]
            advice = (
                f"; --map answer=COLUMN (or COLUMN.FIELD) or tests=COLUMN takes one of the columns {columns}"
                if columns
                else ""
            )
            say(f"note: {self.no_answer} of {read} rows have no answer, tests or completion{advice}")
        for text, count in self.notes.items():
            if count and (text != LETTER_ALONE or 2 * count >= self.counts["kept"]):
                say(f"note: {count} {text}")


def digest(value) -> bytes:
    """A hash of a JSON value, 16 bytes."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


def load_rows(sources, kind: str = "auto", **reading) -> RowReader:
    """Read all rows of files, folders, globs or hub ids into the schema: `rows`, `kind`, `why`, `rejected`, `counts`.

    Args:
        sources: one input or a list: a path, a folder, a glob, `-` for stdin, `owner/name[:config][@split]`.
        kind: one of KINDS, or "auto": the kind of most of the first 100 rows of each file.
        **reading: fields of Settings, as the flags in FLAGS; `mapping` is {field of the schema: column or dotted path},
            `system_prompt` a text, and on_bad="skip" lists bad rows in `rejected`.

    Raises:
        BadRows: rows do not fit, and on_bad is "fail".
        UserError: an input cannot be read, an argument cannot be used, or there is no usable row.
    """
    reader = RowReader(sources, Settings(kind, **reading))
    reader.rows = list(reader)
    if error := reader.error():
        raise error
    reader.say_notes()
    return reader


# ----------------------------------------------------------------------- batches (src/programs/data_loader/batches.py)


def prompt_ids(tokenizer, row: dict) -> list[int]:
    """Token ids of a row's prompt with the generation prompt; the chat template also gets a column `tools`."""
    tools = opened(row.get("tools"))  # often JSON text
    return encode_prompt(tokenizer, row["prompt"], tools=tools if isinstance(tools, list) else None)


class Collator:
    """Turns rows into a batch: `input_ids` and `attention_mask` [B, T], padded on the left, and each column as a list.

    A column that a row lacks is None there.
    """

    def __init__(self, tokenizer):
        ids = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        self.tokenizer, self.pad_id = tokenizer, next((token for token in ids if token is not None), None)
        need(self.pad_id is not None, "got a tokenizer without pad and eos token; expected one; try setting pad_token")

    def __call__(self, rows: list[dict]) -> dict:
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        clash = ", ".join({"input_ids", "attention_mask"} & set(names))
        need(not clash, f"got the column {clash}, which a batch uses itself; expected another name; try drop")
        ids, mask = left_pad([prompt_ids(self.tokenizer, row) for row in rows], self.pad_id, None)
        return {"input_ids": ids, "attention_mask": mask, **{name: [row.get(name) for row in rows] for name in names}}


def create_dataloader(kind: str, sources, tokenizer, *, batch_size: int, shuffle_seed: int | None = None, **reading):
    """torch's DataLoader over the rows that `load_rows(sources, kind, **reading)` gives, with `Collator`.

    `shuffle_seed` shuffles anew in each epoch, by this seed (default: the order of the files).
    """
    generator = None if shuffle_seed is None else torch.Generator().manual_seed(shuffle_seed)
    rows, shuffle = load_rows(sources, kind, **reading).rows, shuffle_seed is not None
    collator = Collator(tokenizer)
    return torch.utils.data.DataLoader(rows, batch_size, shuffle, generator=generator, collate_fn=collator)


# ----------------------------------------------------------------------- command (src/programs/data_loader/command.py)

FOR_OTHER_SCRIPTS = (warn_unread,)  # trainers and evaluations call it, where this file is beside them
FEW_PROMPTS = 20
SPLIT_COLUMNS = {"split", "set", "subset", "partition", "fold"}
SPLITS = {"train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval"}
SEVERAL = {"action": "extend", "nargs": "+", "default": []}
FLAGS = {  # name: (help, what argparse gets)
    "kind": (f"auto, {', '.join(KINDS)}", {"default": "auto", "metavar": "KIND"}),
    "out": ("file to write, .jsonl or .parquet", {"type": Path, "metavar": "FILE"}),
    "for": ("trainer that will read the output", {"dest": "target", "choices": TARGETS, "default": "ours"}),
    "data_source": ("verl's data_source of all rows (default: each row's source)", {"metavar": "NAME"}),
    "inspect": ("report fields, lengths, duplicates, overlap of sources, examples", {"action": "store_true"}),
    "tokenizer": ("folder or hub id, for lengths in tokens", {"metavar": "DIR"}),
    "validate": ("only report bad rows and columns left out of prompts; exit 1 for any", {"action": "store_true"}),
    "limit": ("stop after N good rows", {"type": int, "metavar": "N"}),
    "split": ("hold out 0.1 of the rows, or 200, in OUT.eval.jsonl; NAME=0.1: OUT.NAME.jsonl", {"metavar": "[NAME=]N"}),
    "seed": ("seed of --split (default: that of --shuffle, else 0)", {"type": int, "metavar": "SEED"}),
    "dedup": (
        "leave out rows that repeat an earlier row's prompt, answer, tests and completions",
        {"action": "store_true"},
    ),
    "system_prompt": ("file with a system prompt for prompts that have none", {"type": Path, "metavar": "FILE"}),
    "shuffle": ("shuffle the output by this seed", {"type": int, "metavar": "SEED"}),
    "map": ("field=column, or field=column.key for a value inside an object", {**SEVERAL, "metavar": "F=C"}),
    "drop": ("columns to leave out, also those that are added (source, id)", {**SEVERAL, "metavar": "COLUMN"}),
    "on_bad": ("skip: bad rows go to OUT.rejected.jsonl", {"choices": ("fail", "skip"), "default": "fail"}),
    "encoding": ("encoding of all inputs, such as cp1252 (default: UTF-8, or UTF-16 with a BOM)", {"metavar": "NAME"}),
    "json": ("print one JSON object on stdout", {"action": "store_true"}),
}


def make_command() -> argparse.ArgumentParser:
    usage = "%(prog)s IN ... [--flag value ...]    (--help has all flags)"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=Help, allow_abbrev=False)
    parser.add_argument("inputs", nargs="+", metavar="IN", help="files, folders, globs, `-`, hub id[:config][@split]")
    for name, (text, options) in FLAGS.items():
        default = options.get("default")
        text += f" (default: {default})" if default else ""
        parser.add_argument(f"--{name}", help=text, **options)
    return parser


def settings_of(args) -> Settings:
    """Check the arguments that are not checked elsewhere, and make the settings of the reading."""
    split = args.split or args.shuffle is not None
    rules = (
        (args.out or args.inspect or args.validate, "nothing to do; expected --out FILE, --inspect or --validate"),
        (not (args.validate and args.out), "--validate with --out; expected one of them, as --validate writes nothing"),
        (args.out or not split, "--split or --shuffle without --out; expected --out"),
        (args.data_source is None or args.target == "verl", "--data_source alone; expected --for verl with it"),
        (args.split or args.seed is None, "--seed without --split; expected both; try --shuffle SEED to shuffle"),
        (not args.tokenizer or args.inspect, "--tokenizer alone; expected --inspect with it"),
        (all("=" in item for item in args.map), f"--map {args.map}; expected field=column; try inputs before it"),
    )
    for holds, got in rules:
        need(holds, f"got {got}")
    if args.out:
        check_out(args.out, args.target)
    system, file = None, args.system_prompt
    if file:
        try:
            system = file.read_text(encoding="utf-8-sig").strip()
        except (OSError, ValueError) as error:
            raise UserError(f"got --system_prompt {file}: {error}; expected a text file") from None
        need(system, f"got --system_prompt {file}, which is empty; expected text")
    given = {name: getattr(args, name) for name in ("kind", "on_bad", "limit", "dedup", "encoding")}
    mapping = dict(item.split("=", 1) for item in args.map)
    return Settings(**given, mapping=mapping, drop=tuple(args.drop), system_prompt=system)


def parts_of(args, rows: list[dict], asked: list[str]) -> list[tuple[Path, str, list[int]]]:
    """(Path, split name, row indices in order) of each output; `asked` has the words of each row's prompt."""
    order = list(range(len(rows)))
    if args.shuffle is not None:
        random.Random(args.shuffle).shuffle(order)
    if not args.split:
        return [(args.out, "train", order)]
    name, size = split_size(args.split, len(rows))
    drawn = drawn_tasks(asked, size, str(args.seed if args.seed is not None else args.shuffle or 0))
    got = f"got --split of {len(rows)} rows, of which no prompt has as few as {size}"
    need(drawn, f"{got}; expected more, as the rows of a prompt stay together")
    chosen = {row for row, words in enumerate(asked) if words in drawn}
    if len(chosen) != size:
        say(f"note: {len(chosen)} rows are held out instead of {size}, as the rows of a prompt stay together")
    held, rest = [i for i in order if i in chosen], [i for i in order if i not in chosen]
    if swapped := of_swapped([asked[i] for i in held], {asked[i] for i in rest}):
        say(f"warning: {len(held)} rows are held out{swapped}")
    return [(args.out, "train", rest), (args.out.with_suffix(f".{name}{args.out.suffix}"), name, held)]


def write(args, rows: list[dict], files: list[str], rejected: list[dict]) -> list[dict]:
    """Write the rows and return what was written where; no output may replace one of the input `files`."""
    outputs, target, inputs = [], args.target, {Path(file).resolve() for file in files}
    drop = {*args.drop} - {item.split("=")[0] for item in args.map}  # --map may refill a dropped column
    asked = [asked_words(row["prompt"]) for row in rows] if args.split else []
    with contextlib.ExitStack() as stack:
        for path, split, order in parts_of(args, rows, asked):
            got = f"got --out {args.out}, which would replace the input {path}"
            need(path.resolve() not in inputs, f"{got}; expected another file; try --out part.jsonl")
            kept = [{name: value for name, value in rows[i].items() if name not in drop} for i in order]
            temporary = stack.enter_context(new_file(path))
            lacking = fill_file(kept, temporary, path.suffix, target, split, args.data_source or "")
            output = {"path": str(path), "rows": len(kept), "split": split, "for": target}
            output |= {"without_ground_truth": lacking} if lacking else {}
            outputs.append(output | ({"prompts": len({asked[row] for row in order})} if args.split else {}))
        if args.on_bad == "skip":
            path = args.out.with_suffix(".rejected.jsonl")
            lines = "".join(json.dumps(item) + "\n" for item in rejected)
            stack.enter_context(new_file(path)).write_text(lines, encoding="utf-8")
            outputs.append({"path": str(path), "rows": len(rejected), "split": "rejected"})
    return outputs


def statistics_of(rows: list[dict], files: list[str], tokenizer) -> dict:
    """What --inspect shows of good rows; `files`: the input of each row."""
    fields, lengths, golds, places, several = {}, {}, {}, {}, len({*files}) > 1
    for row, file in zip(rows, files, strict=True):
        for name, value in row.items():
            fields.setdefault(name, []).append(type(value).__name__)
        sizes = {"prompt_chars": sum(len(message["content"]) for message in row["prompt"])}
        if tokenizer:
            sizes["prompt_tokens"] = len(prompt_ids(tokenizer, row))
        for reply in (row[name] for name in ("completion", "chosen") if name in row):
            sizes["completion_chars"] = len(reply) if isinstance(reply, str) else sum(len(m["content"]) for m in reply)
        for name, size in sizes.items():
            lengths.setdefault(name, []).append(size)
        prompt = digest(row["prompt"])
        golds.setdefault(prompt, set()).add(digest([row.get(name) for name in GOLD_FIELDS]))
        places.setdefault(prompt, set()).add(file if several else row["source"])
    pairs = (" & ".join(pair) for held in places.values() for pair in itertools.combinations(sorted(held), 2))
    return {
        "rows": len(rows),
        "sources": dict(Counter(row["source"] for row in rows)),
        "fields": {name: {"rows": len(types), "types": sorted({*types})} for name, types in fields.items()},
        "lengths": {  # by nearest rank
            name: {
                "p50": sizes[(len(sizes) - 1) // 2],
                "p95": sizes[math.ceil(0.95 * len(sizes)) - 1],
                "max": sizes[-1],
            }
            for name, sizes in ((name, sorted(sizes)) for name, sizes in lengths.items())
        },
        "duplicates": len(rows) - sum(map(len, golds.values())),
        "prompts_with_other_answers": sum(len(answers) > 1 for answers in golds.values()),
        "overlap": dict(Counter(pairs)),
        "examples": [{name: shown(value) for name, value in row.items()} for row in rows[:3]],
    }


def collapsed(rows: list[dict]) -> str:
    """A warning if prompts are only a few texts while an unused column has many; else ""."""
    prompts = len({digest(row["prompt"]) for row in rows})
    counts = {name: len({row[name] for row in rows if isinstance(row.get(name), str)}) for name in Names.PROMPT}
    name = max(counts, key=counts.get)
    if prompts > FEW_PROMPTS or counts[name] < max(5, 3 * prompts):
        return ""
    got = f"got {prompts} distinct prompts in {len(rows)} rows, and {counts[name]} distinct {name}"
    return f"{got}; expected prompts that differ; try --map prompt={name}, with --drop for a conflicting column"


def of_splits(rows: list[dict], files: list[str]) -> list[str]:
    """Warnings: columns, or the names of files, say that rows are of several splits, such as train and test."""
    counts: dict[str, Counter] = {}
    for row, file in zip(rows, files, strict=True):
        extra = row["extra_info"] if isinstance(row.get("extra_info"), dict) else {}
        named = {name: value for name, value in {**row, **extra}.items() if head_of(name) in SPLIT_COLUMNS}
        named["file name"] = next((word for word in re.findall("[a-z]+", file.lower())[::-1] if word in SPLITS), "")
        for name, value in named.items():
            if str(value).lower() in SPLITS:
                counts.setdefault(name, Counter())[value] += 1
    mixed = {name: ", ".join(f"{n} {split}" for split, n in of.items()) for name, of in counts.items() if len(of) > 1}
    return [f"rows of several splits go into one output, by {name}: {shares}" for name, shares in mixed.items()]


def run_command(args) -> int:
    from tqdm import tqdm

    rows, files = [], []
    reader = RowReader(args.inputs, settings_of(args))
    rejected = reader.rejected
    tokenizer = read_tokenizer(args.tokenizer) if args.tokenizer else None
    for row in tqdm(reader, desc="rows", unit="", delay=1, disable=None, file=sys.stderr):
        rows.append(row)
        files.append(reader.current)
    only_shown = args.on_bad == "skip" and not args.out and reader.counts["read"]
    error = None if only_shown else reader.error()
    outputs = write(args, rows, reader.files, rejected) if args.out and not error else []
    reader.say_notes()
    answered = [row for row in rows if "answer" in row]
    lines = odd_answers("answer", [row["answer"] for row in answered], [row["prompt"] for row in answered])
    pairs = {(digest(row["prompt"]), digest(row.get("answer"))) for row in rows}
    if count := sum(n > 1 for n in Counter(prompt for prompt, _ in pairs).values()):
        lines.append(f"{count} prompts have another answer in another row; each answer is paid in its own row only")
    collapse = collapsed(rows)
    lines += [collapse] if collapse else []
    for line in [*lines, *(of_splits(rows, files) if args.out else [])]:
        say(f"warning: {line}")
    report = {
        "kind": reader.kind,
        "why": reader.why,
        "counts": reader.counts,
        "outputs": outputs,
        "unread": dict(reader.unread),
        "no_answer": reader.no_answer,
        "errors": rejected[:20] or ([{"message": str(error)}] if error else []),
        "stats": statistics_of(rows, files, tokenizer) if args.inspect else {},
    }
    if args.json:
        tell(json.dumps(report))
    else:
        counts = ", ".join(f"{count} {name}" for name, count in reader.counts.items())
        prompts = {o["path"]: f" of {o['prompts']} prompts" if "prompts" in o else "" for o in outputs}
        written = [f"wrote {output['path']}: {output['rows']} rows{prompts[output['path']]}" for output in outputs]
        shown_stats = [json.dumps(report["stats"], indent=2, ensure_ascii=False)] if args.inspect else []
        tell("\n".join([f"{reader.kind}: {reader.why}", counts, *written, *shown_stats]))
    if error:
        say(f"error: {error}")
    if rejected and not args.out:
        return 1
    return error.code if error else int(bool(args.validate and (reader.unread or collapse)))


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(make_command(), argv)
    try:
        return run_command(args)
    except UserError as error:
        message, code = str(error), error.code
    except OSError as error:  # a full disk, a file that vanished
        message, code = f"got {error}; expected readable inputs and a writable output", 2
    if args.json:
        none = {"kind": None, "why": "", "counts": {}, "outputs": [], "stats": {}}
        tell(json.dumps({**none, "errors": [{"message": message}]}))
    say(f"error: {message}")
    return code


if __name__ == "__main__":
    sys.exit(main())
