#!/usr/bin/env python3
# Built from src/programs/selfcheck/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.6", "transformers>=5.5,<6", "numpy", "pyyaml", "tqdm", "matplotlib", "pyarrow", "datasets", "peft",
# ]
# ///
"""Check a trainer on your own model, tokenizer, data and reward, in seconds, before a long run.

TRAINER.py is any trainer in plain PyTorch whose functions have the names of the contract (`--contract` lists them): a
page of templates/ (PPO, GRPO, distillation, several turns), scripts/ppo_train.py, scripts/on_policy_distillation.py, a
copy, or a script of your own. Of your own it may have a few of them: --partial checks those, makes plain stand-ins for
what they need, and tells what it could not check. A trainer that leaves the training to TRL has none of them.

It is loaded by path and its functions are called on a few short sequences. What they return is compared with
computations made here from the published formulas and the plain networks' logits:

    log-prob     log softmax(logits[t - 1] / temperature)[token t]
    gradient     d/dtheta  1/N sum over response tokens of -A_t ratio_t - entropy_coef H_t,  A constant, ratio = 1
    divergence   d/dtheta  1/N sum over response tokens of KL(student || teacher) over the vocabulary, where one distils
    GAE          A_t = sum_l (gamma lambda)^l (r_{t+l} + gamma V_{t+l+1} - V_{t+l}) over response tokens, returns A + V
    critic       d/dphi  vf_coef/N sum of 1/2 max((V - R)^2, (V_old + clip(V - V_old, -value_clip, value_clip) - R)^2)

The gradient of a page may be of any of three means: over tokens, over completions, by max_new_tokens; the table says
which, and for distillation whether it is the reverse or the forward KL.

Where a trainer plays conversations with an environment, it also plays some with an environment and answers of
selfcheck's own, whose text encoded anew has other ids, so that it is known which token was sampled, which return is
whose and what each environment may hear; and it is given a chat template that drops what was thought.

Policy and critic get a little noise (in memory), so that the policy differs from its reference and the value head from
zero: on the untouched model many faults give the right numbers. Nothing is trained and nothing stays on disk.

A large model is checked in two parts, as stderr says with an estimate of the time and a line for each check. Special
tokens, chat template, reward, log-probs and conversations see all of it, with four completions of 16 tokens. The rest
sees its first two layers (or as many as have one of each kind) with the first 4,096 tokens of its vocabulary; not with
vLLM.

Deliberately left out: whether the settings learn anything, several processes, code that only a longer run reaches
(checkpoints, schedules), calls of tools, a page's `train`, and its `rollout` without an environment. Batch, prompts
and completions are cut to a few short ones; other settings stay yours. What is not given of model, data and reward is
the embedded one.

    python scripts/selfcheck.py templates/ppo.py                                      # CPU, the embedded model, seconds
    python scripts/selfcheck.py my_grpo.py --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl \\
        --reward my_rewards.py:correct                                                # the flags of the run, one GPU
    python scripts/selfcheck.py my_loop.py --partial --model M --data train.jsonl     # has token_logprobs, say, and gae
    CUDA_VISIBLE_DEVICES=0 python scripts/selfcheck.py my_ppo_train.py --config run.yaml --json   # before torchrun

Exit codes: 0 every check passes, 1 one fails, 2 bad input.
"""

# Contents
#       110-141  messages             Errors that a user can mend, each with its exit code, and what is said on stderr
#       144-174  bundle               Where this bundle and its embedded model, data and rewards lie
#       177-308  dialect              One setting under several names: ours, those of the pages, and TRL's. A program …
#       311-320  processes            The processes of a run: device, CPU threads, sums, rows dealt out and gathered, …
#       323-340  exit codes           How a program ends: errors that a user can mend become a message and an exit code
#       343-365  rows                 Rows of data from JSONL, JSON, CSV, parquet or the hub, and what a prompt may be
#       368-538  models               Loading networks: precision, LoRA adapters, tokenizers, 4-bit weights, frozen …
#       541-577  batches              Batches: padding, collating, micro-batches, one line of tokens in which a …
#       580-801  contract             What a trainer must offer to be checked: names, signatures, shapes; …
#       804-980  subject              What is checked: a trainer, the sequences on which it is checked, and how …
#      983-1129  scripted talks       Conversations of a script: answers that are known, and an environment that …
#     1132-1194  trainer              A trainer as the checks see it: what pages and scripts have in common
#     1197-1432  scripts trainer      A script of this bundle, or a copy of one, as the checks see it
#     1435-1710  one page             A trainer on one page, of templates/ or a copy, as the checks see it
#     1713-1956  partial              Loading a trainer by its path; with --partial, plain stand-ins for what a page …
#     1959-2096  oracle               The same figures, computed independently
#     2099-2254  prepare              Loading what is checked, cutting a large model to a few layers and tokens, …
#     2257-2351  input checks         Checks of what goes in: tokens, template, reward
#     2354-2465  advantage checks     Checks of critic, returns and advantages
#     2468-2636  policy checks        Checks of log-probs, padding and the policy's gradient
#     2639-2928  conversation checks  Checks of conversations: what was sampled stays, it alone is trained, nothing …
#     2931-3047  run                  The command line

import argparse
import contextlib
import copy
import dataclasses
import difflib
import functools
import gc
import importlib.util
import inspect
import itertools
import json
import logging
import math
import os
import random
import re
import shlex
import ssl
import statistics
import sys
import tempfile
import textwrap
import time
import types
import urllib.error
import urllib.request
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


class UserError(Exception):
    """Something the user can mend; printed without a traceback. `code` is the exit code."""

    code = 2


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


def suggest(word: str, names: list[str]) -> str:
    """Return '; try NAME' for the nearest name, if one is near."""
    return "".join(f"; try {name}" for name in difflib.get_close_matches(word, names, n=1))


# ----------------------------------------------------------------------------- bundle (src/parts/foundation/bundle.py)

HERE = Path(__file__).resolve()
BUNDLE = next((folder for folder in HERE.parents if (folder / "assets" / "tiny_lm").is_dir()), HERE.parent.parent)
EMBEDDED_MODEL = str(BUNDLE / "assets" / "tiny_lm")
EMBEDDED_DATA = str(BUNDLE / "assets" / "data" / "arithmetic_train.jsonl")
EMBEDDED_ENVIRONMENTS = str(BUNDLE / "examples" / "environments.py")
EMBEDDED_REWARDS = str(BUNDLE / "examples" / "reward_functions_library.py")
EMBEDDED_SPECS = [f"{EMBEDDED_REWARDS}:correctness_reward", f"{EMBEDDED_REWARDS}:format_reward*0.2"]


def prompts_in(file: Path) -> set[str]:
    """The prompts of a JSONL file as JSON."""
    return {json.dumps(json.loads(line)["prompt"]) for line in file.read_bytes().splitlines() if line.strip()}


def has_embedded_prompts(data: str) -> bool:
    """Whether all prompts are of the embedded task, as in a part of its files."""
    try:
        return prompts_in(Path(data)) <= set().union(*map(prompts_in, Path(EMBEDDED_DATA).parent.glob("*.jsonl")))
    except (OSError, ValueError, LookupError, TypeError):
        return False


def specs_for(data: str, specs: list[str], instead: str = "") -> list[str]:
    """Rewards as given, by default the embedded task's for its prompts; UserError for other data without a reward."""
    need(
        specs or has_embedded_prompts(data),
        f"got --data without a reward; expected one that fits it; try --reward FILE.py:function{instead}",
    )
    return specs or EMBEDDED_SPECS


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
    ("use_vllm", "rollout_engine", "try --rollout_engine vllm"),
    ("use_vllm", "engine", "try --engine vllm"),
    ("rollout_engine", "use_vllm", "try --use_vllm colocate"),
    ("shown_samples", "bootstrap fewshot", "try scripts/report.py FOLDER, whose page shows the samples"),
    ("bf16", "precision", "try --precision bf16"),
    ("fp16", "precision", "try --precision fp16"),
    ("algorithm", "loss_type", "try --loss_type, --scale_rewards and --importance_sampling_level"),
    ("loss_type", "loss aggregation", "loss_type grpo is --aggregation seq_mean_token_mean, dapo is token_mean"),
    ("scale_rewards", "algorithm advantage", "scale_rewards group is --advantage grpo, none is --advantage mean"),
    ("importance_sampling_level", "algorithm loss", "importance_sampling_level sequence is --loss gspo"),
)


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
    """A command line in a program's own names; one setting by two names needs one value.

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
        found.append(f"--{own}{word[2 + len(given) :]}" if own and own != given else word)
    if "epsilon" in values and first.get("clip_eps_low") and not {"clip_eps_high", *elsewhere} & first.keys():
        found.append(f"--clip_eps_high={values['epsilon']}")
    return found


def same_value(one: str, other: str) -> bool:
    """Whether two texts say the same, as `1e-5` and `0.00001` do."""
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


# ----------------------------------------------------------------------- processes (src/parts/foundation/processes.py)


def wait_passively() -> None:
    """Let idle OpenMP threads leave their core to other programs after some microseconds; call it before torch loads.

    By default they spin for milliseconds: three runs on two cores then wait for each other most of the time.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


# --------------------------------------------------------------------- exit codes (src/parts/foundation/exit_codes.py)


def quiet_environment(vllm: bool = False) -> None:
    """Keep libraries from writing among our lines, from holding idle cores, and GPU memory from fragmenting.

    What the user has set stays.

    Args:
        vllm: samples in this process; its memory pool does not work with segments that grow.
    """
    wait_passively()
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")  # the first since torch 2.9
    if not vllm and not any(name in os.environ for name in names):
        os.environ[names[0]] = "expandable_segments:True"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # misses a kernel for inference with 4 bits on a CPU


# --------------------------------------------------------------------------------------- rows (src/parts/data/rows.py)


def is_hub_id(source: str) -> bool:
    """Whether a name, not a local path, could be `owner/name` or `name` on the hub."""
    return not Path(source).exists() and not source.startswith((".", "/", "~")) and source.count("/") <= 1


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


# ------------------------------------------------------------------------------- models (src/parts/networks/models.py)


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
        f"id; try {merge_command(source, '--base', 'FOLDER')}, or to mend adapter_config.json",
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
    from transformers import AutoTokenizer

    known = base.get_input_embeddings().weight.shape[0]
    rows = saved_rows(base, load_peft_weights(source, device="cpu"))
    size = max(rows.values(), default=known)
    tied = base.get_input_embeddings().weight is base.get_output_embeddings().weight
    beyond = set()
    if tokenizer_of(source) == source:
        beyond = {token for token, i in AutoTokenizer.from_pretrained(source).get_vocab().items() if i >= size}
    if beyond:  # a plain model may have a few, too
        beyond -= AutoTokenizer.from_pretrained(base.name_or_path).get_vocab().keys()
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

    fit_embeddings(base, source)
    settings = PeftConfig.from_pretrained(source)
    settings.base_model_name_or_path = base.name_or_path
    settings.lora_dropout = dropout
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*missing adapter keys.*")
            model = PeftModel.from_pretrained(base, source, config=settings, is_trainable=trainable)
    except (RuntimeError, ValueError, UserWarning) as error:
        first = str(error).strip().splitlines()[-1].strip()
        got = f"got the adapter {source!r}, which does not fit its base {base.name_or_path!r}: {first}"
        advice = f"expected the model that it was trained on; try {merge_command(source, '--base', 'MODEL')}"
        raise UserError(f"{got}; {advice}") from None
    return model.eval()


def load_pretrained(auto_class, source: str, base: str = "", trainable: bool = False, **options):
    """A network by transformers; of an adapter, its base (a causal one, as it was trained on) with the adapter on top.

    Args:
        base: the adapter's, where it is not the one that it names.
        options: of `from_pretrained`.
    """
    from transformers import AutoModelForCausalLM

    start = base_of(source, base)
    if start == source:
        return auto_class.from_pretrained(source, **options)
    return with_adapter(AutoModelForCausalLM.from_pretrained(start, **options), source, trainable)


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
    import torch
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


# ----------------------------------------------------------------------------- batches (src/parts/networks/batches.py)


def left_pad(sequences: list[list[int]], pad_id: int, device):
    """Return (input_ids, attention_mask), both [B, T], pads on the left."""
    import torch

    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences], device=device)
    mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences], device=device)
    return ids, mask


def collate(samples: list[dict], pad_id: int, device) -> dict:
    """Stack samples: prompts padded on the left, responses on the right, so every response starts in one column.

    A sample's `response_mask`, where it has one, is 1 on what was sampled; else all of the response was.
    """
    import torch

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


# ----------------------------------------------------------------------- contract (src/programs/selfcheck/contract.py)


@dataclasses.dataclass(frozen=True)
class Needed:
    """A function, class or table that the checks take from a trainer."""

    signature: str  # as it is called; what is not a function has its name alone
    meaning: str
    field: str = ""  # asked for where Config has this field
    without: str = ""  # and has not that one
    instead: str = ""  # what does as well

    @property
    def name(self) -> str:
        """What the trainer calls it."""
        return self.signature.partition("(")[0]

    def offered_by(self, module) -> bool:
        """Whether a module has it, or what does as well; a function of this name that is called otherwise is not it."""
        return self.is_called_so(getattr(module, self.name, None)) or callable(getattr(module, self.instead, None))

    def is_called_so(self, function) -> bool:
        """Whether something can be called with the arguments of the signature."""
        named = self.signature.partition("(")[2].partition(")")[0].split(", ")
        given = [name for name in named if name and name != "..." and "=" not in name]
        by_name = {name.partition("=")[0]: None for name in named if "=" in name}
        try:
            called = inspect.signature(function)
            (called.bind_partial if "..." in named else called.bind)(*given, **by_name)
        except ValueError:  # of a builtin, unknown
            return True
        except TypeError:  # nothing that is called, or otherwise
            return not given and callable(function)
        return True

    def asked_of(self, fields) -> bool:
        """Whether a trainer whose Config has these fields needs it."""
        return (not self.field or self.field in fields) and self.without not in fields


ONE_PAGE = (
    Needed("Config", "dataclass of all settings; parse_config(argv) -> Config reads them, if the page has that"),
    Needed(
        "load_models(config) -> models",
        "models.policy, .tokenizer, .device, .eos_ids, .pad_id; .teacher where Config has that; .reference where it "
        "has kl_coef, None for 0; .critic where it has gae_lambda: its forward gives logits [B, T, 1], the value of "
        "the text up to t",
    ),
    Needed(
        "load_rows(config, tokenizer, file) -> rows", 'row["prompt_ids"] [int], row["columns"] the line, with "prompt"'
    ),
    Needed("load_reward(spec) -> reward", "reward(rows, completions) -> a float for each", without="environment"),
    Needed(
        "load_environment(spec) -> environment",
        "what rollout takes; checked with a class that has reset, reply and get_reward",
        field="environment",
    ),
    Needed(
        "rollout(config, models, environment, rows) -> (batch, samples, metrics)",
        "a conversation for each row, in their order; an object for each is made by the class of the environment, and "
        "answers are sampled by `generate` of the page; batch as of generate, with scores [B]",
        field="environment",
    ),
    Needed(
        "generate(config, models, prompts, greedy=False) -> batch",
        "prompts: lists of ids; batch: input_ids, attention_mask, response_mask, rollout_logprobs, [B, T] each; "
        "prompts end, and completions start, in one column; response_mask is 1 on sampled tokens",
    ),
    Needed(
        "token_logprobs(config, network, batch) -> (logprobs, entropy)",
        "of logits / temperature, [B, T], with gradient",
        without="teacher",
    ),
    Needed(
        "response_logits(config, network, batch) -> [N, V]",
        "logits / temperature that predict the N tokens of response_mask; token_logprobs as above will do",
        field="teacher",
        instead="token_logprobs",
    ),
    Needed(
        "accumulate_gradients(config, models, batch, rows)",
        "adds the gradients of the loss of one minibatch; rows [n] are its indices, config.micro_batch of them a pass",
    ),
    Needed(
        "make_experience(config, models, batch) -> batch",
        "batch with scores [B] as well; adds old_logprobs, advantages, with a reference ref_logprobs, with a critic "
        "values and returns, [B, T]",
        without="teacher",
    ),
    Needed(
        "update(config, models, optimizer, batch, step)",
        "all optimizer steps of one training step, of which the first is 1",
        without="teacher",
    ),
    Needed(
        "policy_loss(logprobs, old_logprobs, advantages, ...)",
        "called by accumulate_gradients under this name, with these first",
        without="teacher",
    ),
    Needed(
        "gae(rewards, values, response_mask, gamma, gae_lambda) -> (advantages, returns)",
        "[B, T] each; past tokens outside the mask V and A are carried",
        field="gae_lambda",
    ),
)

# fields of a one-page trainer's Config: (fields, the field with which they are asked for)
FIELDS = (
    ("model data temperature max_new_tokens micro_batch", ""),
    ("vf_coef", "gae_lambda"),
)
OPTIONAL_FIELDS = (
    "seed chat chunk batch_size prompts group_size epochs minibatches kl_coef value_clip critic_warmup_steps "
    "max_turns max_tokens"
)

# what the checks take of a page where it is there
PAGE_OPTIONAL = (
    "check_template(models), which ends the program where the chat template writes earlier turns anew; without it, "
    "rollout does"
)

SCRIPT = (
    Needed("UserError", "what it raises for bad input"),
    Needed("parse_config(argv) -> config", "settings of a command line, a dataclass with the fields of ppo_train.py"),
    Needed("check_config(config)", "raises where settings contradict each other"),
    Needed("start_processes(config) -> device", "the torch device of this process"),
    Needed("load_tokenizer(config) -> tokenizer", "that of the model"),
    Needed("load_splits(config, tokenizer) -> (rows, held_out)", 'row["prompt"], row["prompt_ids"] and its columns'),
    Needed("load_reward(config) -> reward", "reward(rows, completions, ids) -> (scores, {function: values})"),
    Needed("load_models(config, device) -> models", ".policy .critic .reference .tokenizer .eos_ids .pad_id .device"),
    Needed("check_context(config, models, rows)", "raises where prompt and completion are too long for the model"),
    Needed("batch_rows(rows, config, start, count) -> rows", "prompts of the shuffled stream"),
    Needed("HFEngine(config, models)", ".generate(prompts, noise) -> [(ids, logprobs)], greedy for None; .sync()"),
    Needed("collect(config, models, engine, reward, rows, noise, timer) -> samples", "one scored completion a row"),
    Needed("collate(samples, pad_id, device) -> batch", "input_ids, attention_mask, response_mask, rollout_logprobs"),
    Needed("make_experience(config, models, samples, kl_coef) -> batch", "adds log-probs, values and advantages"),
    Needed("autocast(config, device)", "context of mixed precision"),
    Needed("predicting_states(model, batch) -> [B, T, H]", "entry t is the state after token t - 1"),
    Needed("token_logprobs(config, model, hidden, batch) -> (logprobs, entropy)", "[B, T] each"),
    Needed("switch_checkpointing(models, on)", "recomputation of layers on or off"),
    Needed("accumulate_gradients(config, models, batch, rows, scaler)", "adds the gradients of one minibatch"),
    Needed("make_optimizer(config, models) -> optimizer", "as the run has it"),
    Needed("update(config, models, optimizer, scaler, batch, step, ...)", "all optimizer steps of one step"),
    Needed("policy_loss(logprobs, old_logprobs, advantages, ...)", "or, for other losses, the entry of LOSSES"),
    Needed("gae(rewards, values, response_mask, gamma, gae_lambda) -> (advantages, returns)", "[B, T]", "gae_lambda"),
)
# with --environment, too
SCRIPT_TALKS = (
    Needed("load_with_reward(config, tokenizer) -> (environments, reward)", "those of the settings"),
    Needed(
        "make_play_setup(config, tokenizer, end_ids, environments) -> setup",
        "raises for a template that cannot be continued; setup.environments.kinds, setup.bridge.settings",
    ),
    Needed("playable_rows(config, setup, rows, source) -> rows", "those that fit, as conversations begin"),
    Needed(
        "converse(setup, config, models, engine, reward, rows, noise, timer) -> samples",
        "a conversation for each row, in their order, sampled by engine.generate; a sample has what collate takes, "
        "score, and rewards by name",
    ),
)
# what the checks take of a script where it is there: other engines and losses, and what copies of older ones lack
SCRIPT_OPTIONAL = ("VllmEngine", "LOSSES", "settle_precision")


def lacking(module, needed, fields) -> list[str]:
    """What a trainer does not have of what its settings ask for; fields is None where they are not known yet."""
    asked = [n for n in needed if (n.asked_of(fields) if fields is not None else not n.field + n.without)]
    return [n.name for n in asked if not n.offered_by(module)]


def called_otherwise(module, needed, names: list[str]) -> list[str]:
    """Of the names that a trainer lacks, how those that it has are called there, and how they would be called."""
    found = []
    for n in needed:
        function = getattr(module, n.name, None)
        if n.name in names and callable(function):
            found.append(f"{n.name}{inspect.signature(function)} is another one than {n.signature}")
    return found


def lacking_fields(fields) -> list[str]:
    """Fields that the Config of a one-page trainer has not."""
    asked = [names for names, field in FIELDS if not field or field in fields]
    names = " ".join(asked).split() + ["reward"] * ("environment" not in fields)
    return [f"Config.{name}" for name in names if name not in fields]


def wrapped(text: str, first: str = "      ") -> str:
    """Lines of at most 116 characters."""
    return textwrap.fill(text, 116, initial_indent=first, subsequent_indent="      ")


def entry(needed: Needed) -> str:
    """The lines about a name."""
    when = f"where Config has {needed.field}: " * bool(needed.field)
    when += f"where Config has no {needed.without}: " * bool(needed.without)
    return f"  {needed.signature}\n{wrapped(when + needed.meaning)}"


def contract() -> str:
    """The printed list."""
    always, critic = (names.replace(" ", ", ") for names, _ in FIELDS)
    fields = f"{always}; reward where it has no environment; {critic} where it has gae_lambda (a critic)"
    lines = [
        "What selfcheck.py takes from a trainer; all else in it is yours. Tensors [B, T] are over prompt and response:",
        "x[b, t] is about token t. Masks are 1 = keep.",
        "",
        "A page: templates/ppo.py, grpo.py, distillation.py, multi_turn.py, or a copy",
        *map(entry, ONE_PAGE),
        wrapped(f"Fields of its Config: {fields}.", "  "),
        wrapped(f"Used where it has them: {OPTIONAL_FIELDS.replace(' ', ', ')}.", "  "),
        wrapped(f"Used where it has it: {PAGE_OPTIONAL}.", "  "),
        "",
        "A script: scripts/ppo_train.py, on_policy_distillation.py, or a copy",
        *map(entry, SCRIPT),
        "  With --environment, too:",
        *map(entry, SCRIPT_TALKS),
        wrapped(f"Used where it has them: {', '.join(SCRIPT_OPTIONAL)}.", "  "),
    ]
    return "\n".join(lines)


# ------------------------------------------------------------------------- subject (src/programs/selfcheck/subject.py)

SAMPLED = 8  # prompts to sample from
NEW_TOKENS = 32  # tokens per completion
PROBES = 4  # fixed sequences for log-probs and gradients
PROBE_TOKENS = 64  # tokens of their prompts
ALL_ROWS = 2**30  # rows in one pass

# mean difference of log-probs in nats (ten times as much for a single token), relative difference of gradients
LIMITS = {"fp32": (1e-4, 1e-3), "bf16": (0.1, 0.15), "fp16": (0.02, 0.05)}


@dataclass(frozen=True)
class Definition:
    """A loss as papers write it: what the trainer's gradient is compared with."""

    name: str  # where there are several
    aggregation: str = "token_mean"
    constant: float = 1.0  # by which some aggregations divide the sum of a sequence
    entropy_coef: float = 0.0
    kl_coef: float = 0.0  # weight of the divergence from the teacher
    beta: float = 1.0  # which one: 1 reverse KL, 0 forward KL, between them Jensen-Shannon
    teacher: object = None
    width: int | None = None  # logits that count


@dataclass
class Subject:
    """A trainer (ScriptsTrainer or OnePage) that has loaded everything, and what it is checked on."""

    trainer: object
    probes: list  # PROBES samples as `sampled` returns them
    initial: object = None  # log-probs of the probes' responses under the untouched policy, [tokens]
    moved: float = 0.0  # nats per token between the policy and the untouched one

    @property
    def models(self):
        """The networks as a run would have them."""
        return self.trainer.models

    @property
    def limits(self) -> tuple[float, float]:
        """Tolerances of log-probs and of gradients."""
        return LIMITS.get(self.trainer.precision, LIMITS["bf16"])

    def experience(self, **settings) -> dict:
        """The trainer's batch made of the probes."""
        return self.trainer.experience(self.probes, **settings)

    def settled(self) -> dict:
        """The trainer's batch without a graph and with current log-probs throughout: one fault fails one check."""
        batch = {name: x.detach() for name, x in self.experience().items()}
        current = self.trainer.logprobs(self.trainer.collate(self.probes))[0]
        return batch | {name: current for name in self.trainer.settled_logprobs if name in batch}

    def response_logprobs(self, samples: list[dict], batch: dict | None = None):
        """The trainer's log-probs of the sampled tokens, [tokens]."""
        batch = batch or self.trainer.collate(samples)
        return at_responses(self.trainer.logprobs(batch)[0], batch, samples)


def check(advice: str, moved: bool = True, plays: bool = False):
    """Mark `function(subject) -> (passed or None for not applicable, measurement)` as a check.

    Args:
        advice: what to do when it fails.
        moved: whether the policy has to be off its start.
        plays: whether it needs conversations with an environment.
    """

    def mark(function):
        @functools.wraps(function)
        def run(s: Subject):
            silent = s.trainer.silent() if plays else ""
            return (None, silent) if silent else function(s)

        run.advice, run.moved = advice, moved
        return run

    return mark


def networks(models) -> list:
    return [x for x in (models.policy, getattr(models, "critic", None)) if x is not None]


def rest(models) -> None:
    """Drop gradients and leave training mode."""
    for network in networks(models):
        network.zero_grad(set_to_none=True)
        network.eval()


def take_gradients(models, scale: float = 1.0) -> list:
    """One vector per network with up to 4,096 entries of each gradient, evenly spaced; clears the gradients."""
    import torch

    vectors = []
    for network in networks(models):
        parts = [torch.zeros(1)]
        for p in (p for p in network.parameters() if p.requires_grad):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            parts.append((g.flatten()[:: max(1, g.numel() // 4096)] / scale).float().cpu())
        vectors.append(torch.cat(parts))
    rest(models)
    return vectors


class Seen(BaseException):
    """Ends an update once its first loss has been seen."""


@contextlib.contextmanager
def watching(trainer, stop: bool = False):
    """Yield a list that gets (logprobs, old_logprobs, advantages) of every call of the loss; `stop` ends the first."""
    calls = []

    def watched(*args, **kwargs):
        names = ("logprobs", "old_logprobs", "advantages")
        calls.append(tuple(kwargs[n] for n in names) if "logprobs" in kwargs else args[:3])
        if stop:
            raise Seen
        return original(*args, **kwargs)

    original = trainer.swap_loss(watched)
    watched.__dict__.update(vars(original))  # what an entry of a table says of itself
    try:
        with contextlib.suppress(Seen):
            yield calls
    finally:
        trainer.swap_loss(original)


def agree(a, b, limit: float) -> tuple[bool, str]:
    """Whether two vectors differ by at most `limit` on average and ten times that anywhere; and the text of it."""
    difference = (a.float() - b.float()).abs()
    mean, peak = difference.mean().item(), difference.max().item()
    return mean <= limit and peak <= 10 * limit, f"{peak:.1e} nats apart at most, {mean:.1e} on average"


def relative(gradients: list, expected: list) -> float:
    """The largest relative difference |a - b| / |b| over the networks."""
    pairs = zip(gradients, expected, strict=True)
    return largest(((a - b).norm() / b.norm().clamp(min=1e-12)).item() for a, b in pairs)


def length_ratio(gradients: list, expected: list) -> float:
    """How many times as long the first network's gradient is as it has to be."""
    return (gradients[0].norm() / expected[0].norm().clamp(min=1e-12)).item()


def largest(values) -> float:
    """The maximum, where one that is not a number counts as infinite."""
    return max(math.inf if math.isnan(value) else value for value in values)


def sampled_places(sample: dict) -> list[int]:
    """Which of the tokens after the prompt the policy sampled: all, unless `response_mask` says otherwise."""
    return [i for i, yes in enumerate(sample.get("response_mask", [1] * len(sample["response_ids"]))) if yes]


def columns_after_prompts(batch: dict, samples: list[dict]) -> list:
    """The columns of each sample's tokens after the prompt: its last real ones, wherever the trainer pads."""
    pairs = zip(batch["attention_mask"], samples, strict=True)
    return [mask.nonzero().squeeze(-1)[-len(sample["response_ids"]) :] for mask, sample in pairs]


def response_columns(batch: dict, samples: list[dict]) -> list:
    """The columns of each sample's sampled tokens."""
    return [c[sampled_places(x)] for c, x in zip(columns_after_prompts(batch, samples), samples, strict=True)]


def at_responses(x, batch: dict, samples: list[dict]):
    """The entries of x [B, T] at the sampled tokens, [tokens]."""
    import torch

    return torch.cat([x[i, columns] for i, columns in enumerate(response_columns(batch, samples))])


# ----------------------------------------------------------- scripted talks (src/programs/selfcheck/scripted_talks.py)

PLAYED = 4  # conversations: two of each of two rows
ANSWERS = (1, 3, 2, 3)  # answers after which the environment ends each
TURNS = 4  # answers that a trainer is to allow
ANSWER_TOKENS = 64  # of an answer that is cut off
NOTED = "selfcheck"  # a column of the rows: a list, to which every reset adds its number
NUMBERS = re.compile(r"(?:\[talk(\d)\])+")


def number_of(text: str) -> int | None:
    """Which conversation a text is of: the last of the numbers with which it begins; None without one."""
    match = NUMBERS.search("".join(text.split()))
    return int(match[1]) if match else None


def numbers_in(text: str) -> set[int]:
    """The conversations of which a text holds words."""
    return {int(digit) for digit in re.findall(r"\[talk(\d)\]", "".join(text.split()))}


@dataclasses.dataclass
class Turn:
    """An answer that was asked for: what it was asked for with, the ids and log-probs that were given."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]


@dataclasses.dataclass
class Record:
    """What a trainer does with the conversations of one play."""

    tokenizer: object
    answers: list[list[list[int]]]  # ids of each answer of each conversation
    paid: int | None = None  # the conversation whose return is 1 higher
    turns: dict[int, list[Turn]] = dataclasses.field(default_factory=dict)
    heard: dict[int, list[str]] = dataclasses.field(default_factory=dict)  # texts
    said: dict[int, list[str]] = dataclasses.field(default_factory=dict)  # replies
    rows: list[list[int]] = dataclasses.field(
        default_factory=list
    )  # of each reset: the resets that had noted something in its row
    reused: list[tuple[int, int]] = dataclasses.field(
        default_factory=list
    )  # conversations that one object served at once
    early: set[int] = dataclasses.field(
        default_factory=set
    )  # conversations whose return was asked for before their last answer

    def answer(self, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
        """Answers by the script, in the place of a sampler: (ids, log-probs) for each prompt."""
        answers = []
        for prompt in prompts:
            number = number_of(self.tokenizer.decode(prompt)) or 0
            turns = self.turns.setdefault(number, [])
            script = self.answers[number % PLAYED]
            ids = script[min(len(turns), len(script) - 1)]
            first = 1 + 0.1 * number + 0.01 * len(turns)  # no two alike
            turns.append(Turn([*prompt], [*ids], [-first - 1e-4 * i for i in range(len(ids))]))
            answers.append((turns[-1].ids, turns[-1].logprobs))
        return answers

    def environment(self) -> type:
        """The class of environments that writes this record."""
        record = self

        class Probe:
            """Talks by `reply`; its return is that of its number."""

            def reset(self, **row) -> str:
                notes, number = row.get(NOTED, []), len(record.rows)
                if "number" in vars(self) and not self.scored:
                    record.reused.append((self.number, number))
                record.rows.append([*notes])
                notes.append(number)
                self.number, self.count, self.scored = number, 0, False
                return f" [talk {number}]"

            def reply(self, text: str) -> str | None:
                record.heard.setdefault(self.number, []).append(text)
                record.early |= {self.number} if self.scored else set()
                self.count += 1
                if self.count >= ANSWERS[self.number % PLAYED]:
                    return None
                said = f"[talk {self.number}] No, {self.count}."
                record.said.setdefault(self.number, []).append(said)
                return said

            def get_reward(self) -> float:
                self.scored = True
                return 0.5 * (self.number % 2) + float(self.number == record.paid)

        return Probe


def through_a_file(environment: type, load):
    """What `load`, a trainer's own, makes of a class of environments that lies in a file as a user's does."""
    sys.modules["selfcheck_environment"] = module = types.ModuleType("selfcheck_environment")
    module.Probe = environment
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probe.py"
        file.write_text("from selfcheck_environment import Probe\n")
        return load(f"{file}:Probe")


def odd_answers(tokenizer, end: int) -> list[list[list[int]]]:
    """Answers of ids that their text, encoded anew, would not give; every third is cut off."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    plain = [i for i in range(len(tokenizer)) if i not in special]
    draw, script = random.Random(0), []
    for count in ANSWERS:
        answers = []
        for _ in range(count):
            cut = (len(script) + len(answers)) % 3 == 1
            ids = odd_ids(tokenizer, plain, draw, ANSWER_TOKENS if cut else 5)
            answers.append(ids if cut else [*ids, end])
        script.append(answers)
    return script


def odd_ids(tokenizer, plain: list[int], draw: random.Random, count: int) -> list[int]:
    """So many ids which their text, encoded anew, would not give, where there are such."""
    ids = []
    for _ in range(100):
        ids = [draw.choice(plain) for _ in range(count)]
        if tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != ids:
            break
    return ids


def thought_answers(tokenizer, end: int, thinks: bool, begun: bool) -> list[list[list[int]]]:
    """Answers in words, with a thought before each if the model thinks; the second of each conversation is cut off.

    Args:
        begun: the template itself writes the tag with which a thought begins.
    """
    script = []
    for number, count in enumerate(ANSWERS):
        answers = []
        for turn in range(count):
            thought = f"{'' if begun else '<think>'}\nThought {number}{turn}\n</think>\n\n" if thinks else ""
            text = f"{thought}Answer {number}{turn}"
            ids = tokenizer.encode(text, add_special_tokens=False)
            answers.append(ids if turn == 1 else [*ids, end])
        script.append(answers)
    return script


# ------------------------------------------------------------------------- trainer (src/programs/selfcheck/trainer.py)

LIGHT_TOKENS = 16  # of a completion by all of a large model


class Trainer:
    """A module with the functions of the contract; its subclasses call them."""

    takes_holes = False  # responses with tokens of others in between
    has_policy_loss = True  # trains by advantages
    chats = False  # sends plain prompts as chats, unless its settings say otherwise
    on_cut = False  # the model is a cut, of which neither text nor reward says anything
    light = False  # of a large model: no reference, no critic of its own, few and short completions

    def __init__(self, module, needed):
        self.module, self.needed = module, needed
        self.config = self.models = self.with_reference = self.engine = self.reward = self.environment = None

    @property
    def few(self) -> tuple[int, int]:
        """(prompts to sample from, tokens of a completion)."""
        new = min(self.config.max_new_tokens, NEW_TOKENS)
        return (PROBES, min(new, LIGHT_TOKENS)) if self.light else (SAMPLED, new)

    @property
    def plays(self) -> bool:
        """Whether it has conversations with an environment."""
        return bool(getattr(self.config, "environment", "")) and not self.on_cut

    @property
    def scored(self) -> bool:
        """Whether completions are scored: distillation needs no reward."""
        return self.reward is not None or self.plays

    def silent(self) -> str:
        """Why no conversations can be played; "" where they can."""
        return "" if self.plays else "one answer a prompt: no environment"

    def uncalled(self) -> str:
        """Why no run looks at the chat template; "" where one does."""
        return ""

    def template_settings(self) -> dict:
        """What the trainer gives to the chat template."""
        return {}

    def weights_changed(self) -> None:
        """Tell the sampler, where it is not the policy itself."""

    def chat_of(self, row: dict) -> list[dict]:
        """The messages that a prompt is sent as, without an answer yet; none for plain text."""
        if isinstance(row["prompt"], str):
            chats = getattr(self.config, "chat", self.chats)
            return [{"role": "user", "content": row["prompt"]}] if chats else []
        return row["prompt"] if row["prompt"][-1]["role"] != "assistant" else []

    def gae(self, *tensors_and_numbers):
        """(advantages, returns) by the trainer's own function."""
        return self.module.gae(*tensors_and_numbers)

    def without_critic(self) -> dict:
        """The settings with which the loss is the policy's alone."""
        return {"vf_coef": 0.0} if hasattr(self.config, "vf_coef") else {}


# --------------------------------------------------------- scripts trainer (src/programs/selfcheck/scripts_trainer.py)

ZERO_SUM = ("grpo", "mean", "rloo", "gpg", "gpg_verl", "maxrl")  # the advantages of a group sum to 0


class ScriptsTrainer(Trainer):
    """scripts/ppo_train.py, scripts/on_policy_distillation.py and copies; OnePage says what the methods mean."""

    settled_logprobs = ("old_logprobs", "ref_logprobs")

    def lacking(self) -> list[str]:
        return lacking(self.module, self.needed, None)

    def parse(self, flags: list[str]) -> list[str]:
        self.config = self.module.parse_config(flags)
        critic = {"gae_lambda"} if getattr(self.config, "advantage", "") == "gae" else set()
        talks = lacking(self.module, SCRIPT_TALKS, None) if self.plays else []
        return lacking(self.module, self.needed, critic) + talks

    @property
    def user_errors(self) -> tuple:
        """Exceptions that speak to the user."""
        return (self.module.UserError, SystemExit)

    def load(self) -> None:
        trainer, config = self.module, self.config
        trainer.check_config(config)
        device = trainer.start_processes(config)
        if hasattr(trainer, "settle_precision"):  # copies of older trainers have no `auto`
            trainer.settle_precision(config, device)
        tokenizer = trainer.load_tokenizer(config)
        environments, (rows, held_out) = None, trainer.load_splits(config, tokenizer)
        if self.plays:
            environments, self.reward = trainer.load_with_reward(config, tokenizer)
        elif not self.on_cut:
            self.reward = trainer.load_reward(config)
        count, new_tokens = self.few
        small = {"batch_size": count, "minibatches": 1, "ppo_epochs": 2, "rollout_batch_size": 0}
        small["max_new_tokens"] = new_tokens
        small |= {"critic": "shared"} if self.light and hasattr(config, "critic") else {}
        small |= {"group_size": min(config.group_size, 2)} if hasattr(config, "group_size") else {}
        small |= {"mismatch": "none"} if hasattr(config, "mismatch") else {}  # the probes were not sampled
        small |= {"kl_cov_coef": 0.0} if getattr(config, "loss", "") == "kl_cov" else {}  # |log-ratio| has a kink there
        few = dataclasses.replace(config, **small)
        kl_coef = (config.kl_coef or 0.05) * (not self.light)
        self.with_reference = trainer.load_models(dataclasses.replace(few, kl_coef=kl_coef), device)
        if self.plays:
            self.setup = self.setup_of(config, environments)
            rows = trainer.playable_rows(config, self.setup, rows, config.data)
        else:
            trainer.check_context(config, self.with_reference, rows + held_out)
        self.models = self.with_reference
        if not config.kl_coef:
            self.models = copy.copy(self.with_reference)
            self.models.reference = None
        engine = "VllmEngine" if config.rollout_engine == "vllm" else "HFEngine"
        self.engine = getattr(trainer, engine)(few, self.models)
        drawn = trainer.batch_rows(rows, few, 0, 8 * count)
        self.rows = sorted(drawn, key=lambda row: len(row["prompt_ids"]))[: 4 * count : 4]  # from the shorter half
        self.config = dataclasses.replace(few, batch_size=PROBES)

    def setup_of(self, config, environments):
        """What conversations are played with, by the trainer."""
        models = self.with_reference
        return self.module.make_play_setup(config, models.tokenizer, models.eos_ids, environments)

    @property
    def talks(self) -> bool:
        return any(kind.talks for kind in self.setup.environments.kinds.values())

    def silent(self) -> str:
        if not self.plays:
            return "one answer a prompt: no environment"
        if self.talks:
            return ""
        try:
            self.probe_setup(Record(self.models.tokenizer, []))
        except self.user_errors as error:
            return f"checked with an environment that replies, for which {error}"
        return ""

    def probe_setup(self, record: Record):
        """(settings, setup) of conversations with a record's environments."""
        limits = {"max_turns": TURNS, "max_conversation_tokens": 2**20, "max_new_tokens": ANSWER_TOKENS}
        config = dataclasses.replace(self.config, **limits, tool_format="", reward=[])

        def load(spec: str):
            return self.module.load_with_reward(dataclasses.replace(config, environment=spec), self.models.tokenizer)

        environments, reward = through_a_file(record.environment(), load)
        self.probed = self.setup_of(config, environments)
        return config, self.probed, reward

    def template_settings(self) -> dict:
        return self.probed.bridge.settings

    def play(self, record: Record, rows: list[dict]):
        config, setup, reward = self.probe_setup(record)
        engine = types.SimpleNamespace(generate=lambda prompts, noise: record.answer(prompts))
        samples = self.module.converse(setup, config, self.models, engine, reward, rows, None, {})
        return self.collate(samples), [sample["score"] for sample in samples]

    @property
    def device(self):
        return self.models.device

    @property
    def precision(self) -> str:
        return self.config.precision

    def scores(self, samples: list[dict]):
        if self.plays:
            return self.played_scores()
        texts, ids = ([sample[key] for sample in samples] for key in ("completion", "response_ids"))
        return self.reward(self.rows, texts, ids)

    def played_scores(self):
        """(scores, values by name) of conversations with the run's environment, one for each of `rows`."""
        import numpy as np

        noise = np.random.default_rng(0).random((len(self.rows), self.config.max_turns * self.config.max_new_tokens))
        given = (self.setup, self.config, self.models, self.engine, self.reward, self.rows, noise, {})
        samples = self.module.converse(*given)
        names = samples[0]["rewards"]
        return [s["score"] for s in samples], {name: [s["rewards"][name] for s in samples] for name in names}

    def sampled(self):
        import numpy as np

        def no_reward(rows, completions, completion_ids):
            return [0.0] * len(rows), {"none": [0.0] * len(rows)}

        noise = np.random.default_rng(0).random((len(self.rows), self.config.max_new_tokens))
        samples = self.module.collect(self.config, self.models, self.engine, no_reward, self.rows, noise, {})
        return samples, self.collate(samples)

    def greedy(self, prompts: list[list[int]]) -> list[list[int]]:
        engine = self.module.HFEngine(self.config, self.models)
        return [ids for ids, _ in engine.generate(prompts, None)]

    def weights_changed(self) -> None:
        self.engine.sync()

    def collate(self, samples: list[dict]) -> dict:
        return self.module.collate(samples, self.models.pad_id, self.device)

    def laid_out(self, samples: list[dict]):
        return samples, self.collate(samples)

    def logprobs(self, batch: dict, **settings):
        import torch

        config = dataclasses.replace(self.config, **settings)
        with torch.no_grad(), self.module.autocast(config, self.device):
            hidden = self.module.predicting_states(self.models.policy, batch)
            return self.module.token_logprobs(config, self.models.policy, hidden, batch)

    def experience(self, samples: list[dict], models=None, **settings) -> dict:
        config = dataclasses.replace(self.config, **settings)
        return self.module.make_experience(config, models or self.models, samples, config.kl_coef or 0.05)

    def per_pass(self, rows: int, width: int = 1) -> dict:
        return {"micro_batch_tokens": 1 if rows == 1 else rows * width}

    def chunked(self, tokens: int) -> dict:
        if not hasattr(self.config, "logits_chunk"):
            return {}
        vocabulary = self.models.policy.get_input_embeddings().weight.shape[0]
        return {"logits_chunk": tokens * vocabulary, "entropy_coef": 0.01}

    def scaler(self):
        """The gradient scaler of an fp16 run; one that does nothing otherwise."""
        import torch

        enabled = self.config.precision == "fp16"
        return torch.amp.GradScaler(self.device.type, init_scale=2.0**12, enabled=enabled)

    def gradients(self, batch: dict, count: int, **settings) -> list:
        config, scaler = dataclasses.replace(self.config, **settings), self.scaler()
        self.module.switch_checkpointing(self.models, self.config.gradient_checkpointing)
        try:
            self.module.accumulate_gradients(config, self.models, batch, list(range(count)), scaler)
            return take_gradients(self.models, scaler.get_scale())
        finally:
            rest(self.models)

    def starts_update(self, samples: list[dict], models) -> None:
        config = dataclasses.replace(self.config, kl_coef=self.config.kl_coef or 0.05)
        batch = {name: x.detach() for name, x in self.experience(samples, models).items()}
        optimizer = self.module.make_optimizer(config, models)
        given = config, models, optimizer, self.scaler(), batch, getattr(config, "critic_warmup_steps", 0)
        asked = inspect.signature(self.module.update).parameters
        older = {"health": {"step": 0, "bad": 0, "kl_coef": config.kl_coef}} if "health" in asked else {}
        self.module.update(*given, **older)

    def swap_loss(self, function):
        if getattr(self.config, "loss", "clip") in ("clip", "clip_cov"):
            old, self.module.policy_loss = self.module.policy_loss, function
        else:
            table, name = self.module.LOSSES, self.config.loss
            old, table[name] = table[name], function
        return old

    def definitions(self):
        config = self.config
        if getattr(config, "loss", "clip") == "clip_cov":
            return [], "Clip-Cov leaves out tokens of its choice"
        if getattr(config, "kl_top_k", 0):
            return [], "the divergence is of chosen tokens"
        how, known = getattr(config, "aggregation", "token_mean"), {"entropy_coef": config.entropy_coef}
        length = config.max_new_tokens if how == "seq_mean_token_sum_norm" else getattr(config, "norm_length", 1)
        objective = getattr(config, "objective", "policy_gradient")
        if objective != "policy_gradient" and hasattr(self.models.teachers[0], "model"):
            beta, teacher = {"reverse_kl": 1.0, "forward_kl": 0.0}.get(objective, config.beta), self.models.teachers[0]
            known |= {"kl_coef": config.kl_coef, "beta": beta, "teacher": teacher.model, "width": teacher.width}
        return [Definition("", how, length, **known)], ""

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


# ----------------------------------------------------------------------- one page (src/programs/selfcheck/one_page.py)

LOSSES_OF_PAPERS = (
    Definition("mean over tokens"),
    Definition("mean over completions of token means", "seq_mean_token_mean"),
    Definition("sum over tokens / max_new_tokens", "seq_mean_token_sum_norm"),
)
GUARD = "check_template"  # where a page has it


class OnePage(Trainer):
    """templates/ppo.py, grpo.py, distillation.py, multi_turn.py and copies."""

    settled_logprobs = ("old_logprobs", "ref_logprobs", "rollout_logprobs")  # the last are compared with the trainer's
    takes_holes = chats = True
    user_errors = (SystemExit,)  # these trainers end with a sentence

    def __init__(self, module, needed):
        super().__init__(module, needed)
        self.guards = Path(module.__file__).read_text(encoding="utf-8").count(f"{GUARD}(")  # definition and calls

    @property
    def fields(self) -> dict:
        return {f.name: f for f in dataclasses.fields(self.module.Config)}

    def lacking(self) -> list[str]:
        """Names that the trainer has not."""
        if not dataclasses.is_dataclass(getattr(self.module, "Config", None)):
            return lacking(self.module, self.needed, None)
        return lacking(self.module, self.needed, self.fields) + lacking_fields(self.fields)

    def parse(self, flags: list[str]) -> list[str]:
        """Read the settings; what is required and not given is the embedded model's, data's and reward's."""
        words = [word for flag in flags for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
        given = dict(itertools.pairwise([*words, ""]))
        embedded = {"model": EMBEDDED_MODEL, "data": EMBEDDED_DATA, "reward": f"{EMBEDDED_REWARDS}:correctness_reward"}
        embedded["environment"] = f"{EMBEDDED_ENVIRONMENTS}:SecondAttempt"
        embedded["teacher"] = given.get("--model", EMBEDDED_MODEL)  # the student untouched
        for field in [] if {"-h", "--help"} & {*flags} else self.fields.values():
            if field.default is not dataclasses.MISSING or f"--{field.name}" in given:
                continue
            value = embedded.get(field.name, "")
            if field.name == "reward":
                specs_for(given.get("--data", EMBEDDED_DATA), [])
            need(
                value and (field.name == "teacher" or Path(value.rpartition(":")[0] or value).exists()),
                f"got no --{field.name}; expected the flags of a run; try --{field.name}",
            )
            flags = [*flags, f"--{field.name}", value]
        self.config = self.read(flags)
        return []

    def read(self, flags: list[str]):
        """The settings of a command line, in the page's own way or else in transformers'."""
        if hasattr(self.module, "parse_config"):
            return self.module.parse_config(flags)
        from transformers import HfArgumentParser

        try:
            flags = in_own_words(flags, [f.name for f in dataclasses.fields(self.module.Config)])
            return HfArgumentParser(self.module.Config).parse_args_into_dataclasses(flags)[0]
        except ValueError as error:  # unknown flags
            raise UserError(f"{error}; expected those of the trainer; try --help") from error

    def load(self) -> None:
        """Load everything through the trainer, as its `train` does, and cut the work to a few short sequences."""
        count, new_tokens = self.few
        small = {"batch_size": count, "max_new_tokens": new_tokens}
        small |= {"epochs": 2, "minibatches": 1, "group_size": 2, "prompts": PROBES // 2}
        small = {name: value for name, value in small.items() if name in self.fields}
        config = dataclasses.replace(self.config, **small)
        if self.plays:
            self.environment = self.module.load_environment(config.environment)
        elif not self.on_cut and config.reward:
            self.reward = self.module.load_reward(config.reward)
        kl = {"kl_coef": (config.kl_coef or 0.05) * (not self.light)} if hasattr(config, "kl_coef") else {}
        self.with_reference = self.module.load_models(dataclasses.replace(config, **kl))
        for name in ("critic", "reference"):
            setattr(self.with_reference, name, getattr(self.with_reference, name, None))
        self.models = copy.copy(self.with_reference)
        self.models.reference = self.models.reference if getattr(config, "kl_coef", 0) else None
        if self.plays:
            self.guard()
        rows = self.module.load_rows(config, self.models.tokenizer, config.data)
        random.Random(getattr(config, "seed", 0)).shuffle(rows)
        drawn = sorted(itertools.islice(itertools.cycle(rows), 8 * count), key=lambda row: len(row["prompt_ids"]))
        self.rows = [row | {"prompt": row["columns"]["prompt"]} for row in drawn[: 4 * count : 4]]
        self.config = dataclasses.replace(config, **{"batch_size": PROBES} if "batch_size" in self.fields else {})

    @property
    def device(self):
        import torch

        return torch.device(self.models.device)

    @property
    def precision(self) -> str:
        """bf16 on a GPU that has it, or where the weights are; else fp32."""
        import torch

        gpu = self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if gpu or next(self.models.policy.parameters()).dtype != torch.float32 else "fp32"

    def scores(self, samples: list[dict]):
        """(scores, values by reward function) of the completions of `rows`; an environment plays its own."""
        if self.environment is not None:
            batch, *_ = self.module.rollout(self.config, self.models, self.environment, self.rows)
            return batch["scores"].tolist(), {}
        return self.reward(self.rows, [sample["completion"] for sample in samples]), {}

    @property
    def talks(self) -> bool:
        """Whether the environment of the run replies."""
        return hasattr(self.environment, "reply")

    def guard(self) -> None:
        """Let the trainer look at the chat template, as before a run; it ends the program if that is of no use."""
        if hasattr(self.module, GUARD):
            getattr(self.module, GUARD)(self.models)

    def uncalled(self) -> str:
        return f"{GUARD} is there, but nothing calls it" if self.guards == 1 else ""

    def play(self, record: Record, rows: list[dict]):
        """(batch, scores) of conversations with a record's environments and answers."""
        limits = {"max_turns": TURNS, "max_tokens": 2**20, "max_new_tokens": ANSWER_TOKENS}
        limits = {name: value for name, value in limits.items() if name in self.fields}
        config, generate = dataclasses.replace(self.config, **limits), self.module.generate

        def scripted(config, models, prompts, *settings, **named):
            return self.collate(
                [
                    {"prompt_ids": [*prompt], "response_ids": ids, "rollout_logprobs": logprobs}
                    for prompt, (ids, logprobs) in zip(prompts, record.answer(prompts), strict=True)
                ]
            )

        self.guard()
        made = through_a_file(record.environment(), self.module.load_environment)
        self.module.generate = scripted
        try:
            batch, *_ = self.module.rollout(config, self.models, made, rows)
        finally:
            self.module.generate = generate
        return batch, batch["scores"].tolist()

    def sampled(self):
        """(samples, batch) by the trainer's sampler, one completion for each of `rows`, unscored."""
        return self.generated([row["prompt_ids"] for row in self.rows])

    def generated(self, prompts: list[list[int]]):
        """(samples, batch) by the trainer's sampler, one completion a prompt."""
        import torch

        torch.manual_seed(0)
        batch = self.module.generate(self.config, self.models, prompts)
        return self.samples_of(prompts, batch), batch

    def samples_of(self, prompts: list[list[int]], batch: dict) -> list[dict]:
        """Samples of a batch that the trainer generated.

        `response_mask` [n] is 1 on the tokens after the prompt that the policy sampled: those of the trainer's mask,
        those with a log-prob, and the last; others in between are of tools or of the user.
        """
        samples, names = [], ("input_ids", "attention_mask", "response_mask", "rollout_logprobs")
        for prompt, *row in zip(prompts, *(batch[name].cpu() for name in names), strict=True):
            ids, mask, seen = (x[row[1].bool()] for x in (row[0], row[2], row[3]))
            if ids[: len(prompt)].tolist() != list(prompt) or len(ids) == len(prompt):
                raise ValueError("a row of generate() does not begin with its prompt, or has nothing after it")
            ids, mask = (x[len(prompt) :].tolist() for x in (ids, ((mask != 0) | (seen != 0)).int()))
            finished = ids[-1] in self.models.eos_ids
            text = self.models.tokenizer.decode(ids[:-1] if finished else ids)
            sample = {"prompt_ids": list(prompt), "response_ids": ids, "response_mask": [*mask[:-1], 1]}
            sample |= {"rollout_logprobs": seen[len(prompt) :].tolist(), "score": 0.0}
            samples.append(sample | {"completion": text, "finished": finished})
        return samples

    def greedy(self, prompts: list[list[int]]) -> list[list[int]]:
        """Greedy completions of a batch of prompts."""
        batch = self.module.generate(self.config, self.models, prompts, greedy=True)
        return [sample["response_ids"] for sample in self.samples_of(prompts, batch)]

    def collate(self, samples: list[dict]) -> dict:
        """Samples as a batch of [B, T] tensors, laid out as `generate` does."""
        return collate(samples, self.models.pad_id, self.device)

    def laid_out(self, samples: list[dict]):
        """(samples, batch) as the trainer lays them out: completions of its own, for these prompts."""
        return self.generated([sample["prompt_ids"] for sample in samples])

    def logprobs(self, batch: dict, **settings):
        """(log-probs, entropy), [B, T] each, without gradient."""
        import torch

        config, mask = dataclasses.replace(self.config, **settings), batch["response_mask"].bool()
        with torch.no_grad():
            if hasattr(self.module, "token_logprobs"):
                return self.module.token_logprobs(config, self.models.policy, batch)
            dist = torch.log_softmax(self.module.response_logits(config, self.models.policy, batch), dim=-1)  # [N, V]
            found = dist.gather(-1, batch["input_ids"][mask][:, None]).squeeze(-1), -(dist.exp() * dist).sum(-1)
            return tuple(x.new_zeros(mask.shape).masked_scatter(mask, x) for x in found)

    def experience(self, samples: list[dict], models=None, **settings) -> dict:
        """The training batch made of samples."""
        import torch

        models, batch = models or self.models, self.collate(samples)
        batch["scores"] = torch.tensor([float(s["score"]) for s in samples], device=self.device)
        batch["rollout_logprobs"] = self.logprobs(batch)[0]  # pages stop where sampler and trainer differ
        if not self.has_policy_loss:
            return batch
        return self.module.make_experience(self.with_kl(models, **settings), models, batch)

    def with_kl(self, models, **settings):
        """The settings, with KL if there is a reference, and without if not."""
        kl = {"kl_coef": (self.config.kl_coef or 0.05) if models.reference is not None else 0.0}
        return dataclasses.replace(self.config, **kl if "kl_coef" in self.fields else {}, **settings)

    def per_pass(self, rows: int, width: int = 1) -> dict:
        """The settings with which so many rows of a batch go through the networks at once."""
        return {"micro_batch": rows}

    def chunked(self, tokens: int) -> dict:
        """The settings with which the output layer sees so many tokens at once; none where there are no such."""
        return {"chunk": tokens} if hasattr(self.config, "chunk") else {}

    def gradients(self, batch: dict, count: int, **settings) -> list:
        """Gradients by the trainer's accumulate_gradients of `count` rows."""
        import torch

        config, rows = dataclasses.replace(self.config, **settings), torch.arange(count, device=self.device)
        try:
            self.module.accumulate_gradients(config, self.models, batch, rows)
            return take_gradients(self.models)
        finally:
            rest(self.models)

    @property
    def has_policy_loss(self) -> bool:
        """Whether it trains by advantages; else by the divergence from a teacher."""
        return "teacher" not in self.fields

    def starts_update(self, samples: list[dict], models) -> None:
        """Begin an update as of a run, on samples."""
        import torch

        batch = {name: x.detach() for name, x in self.experience(samples, models).items()}
        groups = [{"params": [p for p in n.parameters() if p.requires_grad]} for n in networks(models)]
        optimizer, step = torch.optim.AdamW(groups, lr=0.0), getattr(self.config, "critic_warmup_steps", 0) + 1
        self.module.update(self.with_kl(models), models, optimizer, batch, step)

    def swap_loss(self, function):
        """Put a function in the place of the policy loss, where there is one."""
        if not self.has_policy_loss:
            return function
        old, self.module.policy_loss = self.module.policy_loss, function
        return old

    def definitions(self):
        """(the losses of which the trainer's has to be one, why there is none)."""
        if self.has_policy_loss:
            return [dataclasses.replace(d, constant=self.config.max_new_tokens) for d in LOSSES_OF_PAPERS], ""
        teacher = {"kl_coef": 1.0, "teacher": self.models.teacher}
        return [Definition("reverse KL", **teacher), Definition("forward KL", **teacher, beta=0.0)], ""

    def group_of(self, samples: list[dict]):
        """(the group of each sample, why advantages of a group need not sum to 0)."""
        if "group_size" not in self.fields:
            return [], "advantages are not of groups"
        return [i // self.config.group_size for i in range(len(samples))], ""

    def values_after(self, ids):
        """Values [T] of the text up to each token of ids [1, T], by the plain critic; None without one."""
        if self.models.critic is None:
            return None
        return self.models.critic(input_ids=ids, attention_mask=ids * 0 + 1).logits[0, :, 0].float()


# ------------------------------------------------------------------------- partial (src/programs/selfcheck/partial.py)

# What each check is about: without it, there is nothing to check. Checks that are not here need all of a page.
ABOUT = {
    "special_tokens": ("load_models",),
    "template_ends_at_generation": ("load_rows",),
    "reward_answers": ("load_reward",),
    "value_head_zero": ("make_experience", "load_models"),
    "gae_formula": ("gae",),
    "group_advantages": ("make_experience",),
    "reference_is_initial": ("make_experience", "load_models"),
    "first_update_ratio": ("update", "make_experience", "policy_loss"),
    "sampler_agreement": ("generate",),
    "logprob_shift": ("token_logprobs",),
    "padding": ("token_logprobs",),
    "accumulation": ("accumulate_gradients", "Config.micro_batch"),
    "chunking": ("token_logprobs", "accumulate_gradients"),
    "advantages_detached": ("accumulate_gradients",),
    "prompt_gradient": ("accumulate_gradients",),
    "value_loss_gradient": ("accumulate_gradients", "load_models"),
    **dict.fromkeys(("turn_template", "turn_ids", "turn_mask", "turn_rewards", "turn_state"), ("rollout",)),
}
# What else some look at, which is a stand-in's where the page has none.
BESIDE = {
    **dict.fromkeys(("padding", "prompt_gradient", "reward_answers"), "generate"),
    "advantages_detached": "make_experience",
}
COMPUTING = ("token_logprobs", "response_logits", "generate", "accumulate_gradients", "make_experience", "gae")
DEFAULTS = {
    "model": EMBEDDED_MODEL,
    "data": EMBEDDED_DATA,
    "reward": f"{EMBEDDED_REWARDS}:correctness_reward",
    "temperature": 1.0,
    "max_new_tokens": NEW_TOKENS,
    "micro_batch": 2,
    "vf_coef": 0.5,
}


def load_trainer(file: str):
    """The trainer of a file, as the checks see it; raise UserError where it cannot be loaded or lacks a name."""
    trainer, names = nearest_kind(file)
    need_names(file, names, called_otherwise(trainer.module, trainer.needed, names))
    return trainer


def nearest_kind(file: str) -> tuple:
    """(The trainer of a file as the kind that it lacks less of, what it lacks); raise UserError for no trainer."""
    path = Path(file)
    need(
        path.suffix == ".py" and path.is_file(),
        f"got trainer {file!r}, which is no Python file; expected TRAINER.py first, then its flags; "
        "try scripts/ppo_train.py",
    )
    module = import_file(path)
    # a page samples with `generate`, a script with an engine; a copy that has neither is what it lacks less of
    kinds = [OnePage(module, ONE_PAGE), ScriptsTrainer(module, SCRIPT)]
    trainer = min(kinds, key=lambda kind: len(kind.lacking()) / len(kind.needed))
    names = trainer.lacking()
    need(
        not names or not re.search(r"^\s*from trl\b.*Trainer\b", path.read_text(encoding="utf-8"), re.MULTILINE),
        f"got trainer {file!r}, which leaves the training to TRL; expected one in plain PyTorch, whose own functions "
        "can be called; try templates/grpo.py",
    )
    return trainer, names


def need_names(file: str, names: list[str], otherwise: list[str] = ()) -> None:
    """Raise UserError if a trainer lacks names; `otherwise` has those that are something else there."""
    need(
        not names,
        f"got trainer {file!r} without {', '.join([*names, *otherwise])}; expected all that the checks call; "
        "try selfcheck.py --contract, or --partial to check what a page has of it",
    )


def import_file(path: Path):
    """The module of a file, which is not run."""
    sys.dont_write_bytecode = True  # no __pycache__ beside the trainer or the reward file
    sys.path.insert(0, str(path.resolve().parent))  # as if it were run
    spec = importlib.util.spec_from_file_location("checked_trainer", path)
    sys.modules["checked_trainer"] = trainer = importlib.util.module_from_spec(spec)  # dataclasses look here
    try:
        spec.loader.exec_module(trainer)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"got trainer {str(path)!r}: importing it raises {type(error).__name__}: {error}; expected a module that "
            "runs nothing at import; try `if __name__ == '__main__': main()` at its end"
        ) from error
    return trainer


def load_partial(file: str):
    """The page of a file with stand-ins for what it lacks, whose names are its `absent`.

    Raises:
        UserError: it has no function that a check is about, or is a copy of a script.
    """
    trainer, names = nearest_kind(file)
    if not names:
        return trainer
    got = f"got trainer {file!r} without {', '.join(names)}"
    has = [name for name in COMPUTING if callable(getattr(trainer.module, name, None)) and name not in names]
    some = isinstance(trainer, OnePage) and has
    need(some, f"{got}; expected a page that has {' or '.join(COMPUTING)} for --partial; try selfcheck.py --contract")
    fill(trainer, names)
    return trainer


def fill(trainer: OnePage, names: list[str]) -> None:
    """Give a page that lacks `names` stand-ins for them, and note what is not its own."""
    module, own = trainer.module, getattr(trainer.module, "Config", None)
    fields = [name.partition(".")[2] for name in names if name.startswith("Config.")]
    if not dataclasses.is_dataclass(own):
        own, fields = None, [name for name in DEFAULTS if name != "vf_coef"]
    module.Config = with_fields(own, fields)
    of_contract = {needed.name: needed for needed in trainer.needed}
    there = {name: getattr(module, name) for name in of_contract if callable(getattr(module, name, None))}
    trainer.otherwise = {name for name, function in there.items() if not of_contract[name].is_called_so(function)}
    missing = {name for name in STAND_INS if name not in there} | trainer.otherwise & {*STAND_INS}
    missing -= {"token_logprobs"} if "response_logits" in there else set()
    trainer.absent = missing | trainer.otherwise | {*trainer.lacking()}  # of the contract for these settings
    if "micro_batch" not in Path(module.__file__).read_text(encoding="utf-8"):
        trainer.absent.add("Config.micro_batch")
    trainer.module = WithStandIns(module, {name: STAND_INS[name] for name in missing})
    trainer.bare_gae = "gae" in there


class WithStandIns:
    """A module with stand-ins, which its own functions do not see: they may call others of the same names."""

    def __init__(self, module, stand_ins: dict):
        vars(self).update(wrapped=module, stand_ins=stand_ins)

    def __getattr__(self, name: str):
        return self.stand_ins[name] if name in self.stand_ins else getattr(self.wrapped, name)

    def __setattr__(self, name: str, value) -> None:
        if name in self.stand_ins:
            self.stand_ins[name] = value
        else:
            setattr(self.wrapped, name, value)


def with_fields(config, names: list[str]):
    """A dataclass with further fields, which have their usual values."""
    added = [(name, type(DEFAULTS[name]), dataclasses.field(default=DEFAULTS[name])) for name in names]
    return dataclasses.make_dataclass("Config", added, bases=(config,) if config else ())


def unchecked(trainer, check: str) -> str:
    """Why a check has nothing to look at, or nothing."""
    absent = getattr(trainer, "absent", ())
    lacking = [name for name in ABOUT.get(check, absent) if name in absent]
    lacking = [name + " that is called as --contract says" * (name in trainer.otherwise) for name in lacking]
    return f"not checked: it has no {' and no '.join(lacking)}" if lacking else ""


def aside(trainer, check: str) -> str:
    """What a check that ran has not looked at, or nothing."""
    beside = BESIDE.get(check)
    return f"; {beside} not checked: it has none" if beside in getattr(trainer, "absent", ()) else ""


def plain_models(config):
    """The policy, and the teacher where there is one, as transformers loads them, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def network(name: str):
        return merged(load_pretrained(AutoModelForCausalLM, name, dtype=torch.float32)).to(device).eval()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of(config.model))
    policy = network(config.model)
    ends = policy.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [tokenizer.eos_token_id if ends is None else ends]
    pad = ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    teacher = network(config.teacher) if getattr(config, "teacher", None) else None
    found = SimpleNamespace(policy=policy, tokenizer=tokenizer, device=device, eos_ids=ends, pad_id=pad)
    return SimpleNamespace(**vars(found), teacher=teacher, reference=None, critic=None)


def plain_rows(config, tokenizer, file: str) -> list[dict]:
    """Rows of a JSONL file, their prompts through the chat template where there is one."""
    rows = []
    with Path(file).open(encoding="utf-8") as lines:
        columns = [json.loads(line) for line in lines if line.strip()]
    for row in columns:
        chat = [{"role": "user", "content": row["prompt"]}] if isinstance(row["prompt"], str) else row["prompt"]
        if tokenizer.chat_template:
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        else:
            ids = tokenizer(chat[-1]["content"]).input_ids
        rows.append({"prompt_ids": list(ids), "columns": row})
    return rows


def echo(config, models, prompts: list[list[int]], greedy: bool = False) -> dict:
    """A batch whose completions repeat their prompts: nothing is said of a sampler that is not there."""
    samples = []
    for ids in prompts:
        answer = list(ids)[: config.max_new_tokens]
        samples.append({"prompt_ids": list(ids), "response_ids": answer, "rollout_logprobs": [0.0] * len(answer)})
    return collate(samples, models.pad_id, models.device)


def plain_logprobs(config, network, batch: dict):
    """Log-probs and entropies [B, T] of the sampled tokens."""
    import torch

    ids, mask = batch["input_ids"], batch["attention_mask"]
    places = (mask.cumsum(-1) - 1).clamp(min=0)  # over real tokens only
    logits = network(input_ids=ids, attention_mask=mask, position_ids=places).logits.float() / config.temperature
    dist = torch.log_softmax(logits[:, :-1], dim=-1)
    pair = dist.gather(-1, ids[:, 1:, None]).squeeze(-1), -(dist.exp() * dist).sum(-1)
    return tuple(torch.nn.functional.pad(x, (1, 0)) * batch["response_mask"] for x in pair)


def plain_experience(config, models, batch: dict) -> dict:
    """The batch with log-probs, and the scores about their mean as advantages."""
    import torch

    mask = batch["response_mask"]
    with torch.no_grad():
        old = plain_logprobs(config, models.policy, batch)[0]
        made = {"old_logprobs": old, "advantages": (batch["scores"] - batch["scores"].mean())[:, None] * mask}
        if models.reference is not None:
            made["ref_logprobs"] = plain_logprobs(config, models.reference, batch)[0]
    if models.critic is not None:
        made |= {"values": old * 0.0, "returns": old * 0.0}
    return batch | made


STAND_INS = {
    "load_models": plain_models,
    "load_rows": plain_rows,
    "load_reward": lambda spec: lambda rows, completions: [0.0] * len(completions),
    "load_environment": lambda spec: None,
    "generate": echo,
    "token_logprobs": plain_logprobs,
    "make_experience": plain_experience,
    "policy_loss": lambda *given, **named: None,  # never called: a loss of another name is compared by its gradient
}


# --------------------------------------------------------------------------- oracle (src/programs/selfcheck/oracle.py)


def own_autocast(s: Subject):
    """The mixed precision of the trainer."""
    import torch

    if s.trainer.precision == "fp32":
        return contextlib.nullcontext()
    dtype = {"bf16": torch.bfloat16}.get(s.trainer.precision, torch.float16)
    return torch.autocast(s.trainer.device.type, dtype=dtype)


def own_scale(s: Subject) -> float:
    """What a loss is multiplied by, so that fp16 can hold its gradient."""
    return 2.0**12 if s.trainer.precision == "fp16" else 1.0


def own_ids(s: Subject, sample: dict):
    """Ids [1, T] of one sequence alone, without padding."""
    import torch

    return torch.tensor([sample["prompt_ids"] + sample["response_ids"]], device=s.trainer.device)


def own_dists(s: Subject, network, sample: dict, width: int | None = None):
    """Log-probs [n, V] over the vocabulary where a network predicts a sample's n sampled tokens."""
    import torch

    ids, n = own_ids(s, sample), len(sample["response_ids"])
    with own_autocast(s):
        logits = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]  # [T, V]
    width = width or getattr(network, "known_tokens", None)  # rows beyond the tokenizer are no tokens
    logits = logits[-n - 1 : -1, :width][sampled_places(sample)]  # entry t - 1 predicts t
    return torch.log_softmax(logits.float() / s.trainer.config.temperature, dim=-1)


def own_forward(s: Subject, sample: dict):
    """(log-probs, entropies), both [n], of a sample's n sampled tokens."""
    dist, n = own_dists(s, s.models.policy, sample), len(sample["response_ids"])
    targets = own_ids(s, sample)[0, -n:][sampled_places(sample)]
    return dist.gather(-1, targets[:, None]).squeeze(-1), -(dist.exp() * dist).sum(-1)


def own_logprobs(s: Subject, samples: list[dict] | None = None):
    """Log-probs of all sampled tokens of the samples (the probes, unless given), [tokens]."""
    import torch

    with torch.no_grad():
        return torch.cat([own_forward(s, sample)[0] for sample in (samples or s.probes)])


def own_values(s: Subject, sample: dict):
    """Values [n] of the text before each of the n tokens after a prompt; None without a critic."""
    n = len(sample["response_ids"])
    with own_autocast(s):
        values = s.trainer.values_after(own_ids(s, sample))
    return None if values is None else values[-n - 1 : -1]


def own_policy_gradients(s: Subject, batch: dict, definition: Definition) -> list:
    """Gradients of the policy loss by its definition, with the batch's advantages as constants."""
    at, scale = response_columns(batch, s.probes), own_scale(s)
    for i, sample in enumerate(s.probes):
        logprobs, entropy = own_forward(s, sample)
        ratio = (logprobs - logprobs.detach()).exp()
        loss = own_divergence(s, sample, definition) - definition.entropy_coef * entropy.sum()
        if "advantages" in batch:
            loss = loss - (batch["advantages"][i, at[i]].detach() * ratio).sum()
        (loss / own_divisor(definition, len(at[i]), at) * scale).backward()
    return take_gradients(s.models, scale)[:1]


def own_divergence(s: Subject, sample: dict, definition: Definition):
    """Sum over the sampled tokens of kl_coef * divergence from the teacher, where there is one."""
    import torch

    if definition.teacher is None:
        return 0.0
    student = own_dists(s, s.models.policy, sample, definition.width)
    with torch.no_grad():
        teacher = own_dists(s, definition.teacher, sample, definition.width)
    width, beta = min(student.shape[-1], teacher.shape[-1]), definition.beta  # one of them may have rows of padding
    student, teacher = (torch.log_softmax(x[:, :width], dim=-1) for x in (student, teacher))
    mixture = (1 - beta) * student.exp() + beta * teacher.exp()
    forward = (teacher.exp() * (teacher - (student if beta == 0 else mixture.log()))).sum()
    reverse = (student.exp() * (student - (teacher if beta == 1 else mixture.log()))).sum()
    parts = {0.0: forward, 1.0: reverse}.get(beta, beta * forward + (1 - beta) * reverse)
    return definition.kl_coef * parts


def own_divisor(definition: Definition, length: int, sequences: list) -> float:
    """What the sum of a sequence's token losses is divided by, for its length and all sequences of the minibatch."""
    if definition.aggregation == "token_mean":
        return sum(map(len, sequences))
    per_sequence = {"seq_mean_token_mean": length, "seq_mean_token_sum": 1}
    return len(sequences) * per_sequence.get(definition.aggregation, definition.constant)


def own_value_gradients(s: Subject, batch: dict, value_clip: float, vf_coef: float) -> list:
    """Gradients of vf_coef * mean of 1/2 max((V - R)^2, (V_old + clip(V - V_old) - R)^2), of the critic alone.

    V is of the plain critic; mask, old values and returns are the batch's.
    """
    import torch

    total, scale = batch["response_mask"].sum(), own_scale(s)
    for i, columns in enumerate(columns_after_prompts(batch, s.probes)):
        old, returns, mask = (batch[name][i, columns] for name in ("values", "returns", "response_mask"))
        values = own_values(s, s.probes[i])
        loss = (values - returns) ** 2
        if value_clip:
            near = torch.minimum(torch.maximum(values, old - value_clip), old + value_clip)
            loss = torch.maximum(loss, (near - returns) ** 2)
        (vf_coef * 0.5 * (loss * mask).sum() / total * scale).backward()
    return take_gradients(s.models, scale)[1:]


def own_gae(rewards, values, mask, gamma: float, gae_lambda: float):
    """Advantages [B, T] by the sum A_t = sum_l (gamma lambda)^l delta_{t + l} over a row's sampled tokens alone."""
    advantages = values * 0
    for i, columns in enumerate(row.nonzero().flatten().tolist() for row in mask):
        r, v = ([x[i, c].item() for c in columns] for x in (rewards, values))
        v.append(0.0)  # nothing comes after the last token
        delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(len(r))]
        for t, column in enumerate(columns):
            advantages[i, column] = sum((gamma * gae_lambda) ** k * delta[t + k] for k in range(len(r) - t))
    return advantages


def own_mask(batch: dict, samples: list[dict]):
    """What `response_mask` [B, T] has to be."""
    import torch

    mask = torch.zeros_like(batch["attention_mask"])
    for i, columns in enumerate(response_columns(batch, samples)):
        mask[i, columns] = 1
    return mask


# ------------------------------------------------------------------------- prepare (src/programs/selfcheck/prepare.py)

ENOUGH = 20_000_000  # parameters that a cut has to save; a model that saves fewer is checked whole
TOKENS = 4096  # of the vocabulary


@dataclasses.dataclass
class Cut:
    """What stands for a model in checks that do not need its weights."""

    model: str
    config: object
    layers: int
    of_layers: int
    parameters: int  # of the whole model
    saved: int

    def __str__(self) -> str:
        return f"its first {self.layers} of {self.of_layers} layers"

    def write(self, folder: str) -> str:
        """Save the cut with a tokenizer into a folder; tokens 0 and 1 are pad and end token."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        network = AutoModelForCausalLM.from_pretrained(self.model, config=self.config, dtype="auto")
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        network.resize_token_embeddings(min(TOKENS, len(tokenizer)))
        for config in (network.config, network.config.get_text_config(), network.generation_config):
            config.pad_token_id, config.eos_token_id = 0, 1
        tokenizer.pad_token, tokenizer.eos_token = tokenizer.convert_ids_to_tokens([0, 1])
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder


def cut_of(model: str) -> Cut:
    """The cut of a model: two layers, or as many as it takes to have one of each kind."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model)
    small = copy.deepcopy(config)
    text, count = small.get_text_config(), config.get_text_config().num_hidden_layers
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    (stack,) = [m for m in network.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    types = getattr(text, "layer_types", None) or [""] * count
    shapes = [{name: p.shape for name, p in layer.named_parameters()} for layer in stack]
    kinds = list(zip(types, shapes, strict=True))
    layers = max(2, *(kinds.index(kind) + 1 for kind in kinds))
    for name, value in vars(text).items():
        if isinstance(value, list | tuple) and len(value) == count:
            setattr(text, name, value[:layers])
    text.num_hidden_layers = layers
    saved = sum(shape.numel() for layer in shapes[layers:] for shape in layer.values())
    saved += max(0, text.vocab_size - TOKENS) * text.hidden_size
    return Cut(model, small, layers, count, network.num_parameters(), saved)


def cuts_for(settings) -> dict[str, Cut]:
    """{setting: its model's cut} for a run; {} where that saves little, cannot be, or vLLM holds the model."""
    models, teacher = {"model": settings.model}, getattr(settings, "teacher", None)
    models |= {"teacher": teacher[0] if isinstance(teacher, list) and len(teacher) == 1 else teacher} if teacher else {}
    try:
        single = getattr(settings, "rollout_engine", "") != "vllm" and all(isinstance(m, str) for m in models.values())
        cuts = {name: cut_of(model) for name, model in models.items()} if single else {}
    except OSError:  # no such model, which the trainer tells best
        return {}
    except Exception as error:  # an architecture that differs
        say(f"note: checking all of the model, which cannot be cut: {type(error).__name__}: {error}")
        return {}
    return cuts if cuts and cuts["model"].saved >= ENOUGH else {}


def on_cuts(settings, cuts: dict[str, Cut], folder: str):
    """Settings with the cuts in place of the models."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # it names the layers that a cut leaves out
    written = {name: cut.write(f"{folder}/{name}") for name, cut in cuts.items()}
    if isinstance(getattr(settings, "teacher", ""), list):
        written["teacher"] = [written["teacher"]]
    return dataclasses.replace(settings, **written)


def expected_seconds(cut: Cut) -> float:
    """About how long the checks of a cut model take here, by the time of one product of matrices."""
    import torch

    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    a, b, times = torch.ones(64, 1024, device=device), torch.ones(1024, 4096, device=device), []
    for _ in range(5):
        started = time.perf_counter()
        (a @ b).sum().item()
        times.append(time.perf_counter() - started)
    return 8 + 25 * min(times) / b.numel() * cut.parameters


def prepare(trainer) -> Subject:
    """Load everything through the trainer, and make the sequences on which it is checked.

    Prompts of a model that was cut get ids that it has.

    Raises:
        UserError: for what keeps the checks from starting.
    """
    try:
        trainer.load()
        for row in trainer.rows if trainer.on_cut else []:
            size = trainer.models.policy.get_input_embeddings().weight.shape[0]
            row["prompt_ids"] = [i % size for i in row["prompt_ids"]]
        subject = Subject(trainer, make_probes(trainer.rows, trainer.takes_holes))
        subject.initial = own_logprobs(subject)
    except trainer.user_errors as error:
        raise UserError(str(error).removeprefix("error: ")) from error
    except Exception as error:
        raise UserError(f"got {type(error).__name__} before the first check: {error}") from error
    return subject


def make_probes(rows: list[dict], holes: bool) -> list[dict]:
    """Samples with prompts of growing and responses of shrinking length, all different, cut from real prompts.

    With `holes` the second has a token in its response that the policy has not sampled, as a tool's output is.
    """
    probes = []
    for i, row in enumerate(rows[:PROBES]):
        ids = list(row["prompt_ids"])[-PROBE_TOKENS:]
        endless = ids * (2 * PROBES + 4)
        sample = {"prompt": row["prompt"], "prompt_ids": endless[: len(ids) + 2 * i], "completion": ""}
        response = endless[1 : 4 + 2 * (PROBES - i)]
        sample |= {"response_ids": response, "rollout_logprobs": [0.0] * len(response), "finished": True}
        sample["response_mask"] = [int(not (holes and i == 1 and j == 2)) for j in range(len(response))]
        score = 1.6 + 1.5 * (-1) ** i + 0.1 * i  # no two alike in a group, none below 0
        sample |= {"rewards": {"probe": score}, "weights": {"probe": 1.0}, "group": i // 2, "baseline": 0.0}
        probes.append(sample | {"score": score})
    return probes


def move(s: Subject) -> None:
    """Add noise to the trained weights, in memory, until the policy differs clearly from the untouched one."""
    import torch

    scale, enough = 0.01, max(0.05, 3 * s.limits[0])  # nats per token
    for attempt in range(8):
        generator = torch.Generator(s.trainer.device).manual_seed(attempt)
        with torch.no_grad():
            for p in (p for network in networks(s.models) for p in network.parameters() if p.requires_grad):
                size = p.abs().mean().item() or 1.0  # LoRA's B and the value head are 0
                noise = torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype)
                p.add_(noise, alpha=scale * size)
        s.moved = (own_logprobs(s) - s.initial).abs().mean().item()
        if s.moved >= enough:
            break
        scale *= 2
    s.trainer.weights_changed()


# --------------------------------------------------------------- input checks (src/programs/selfcheck/input_checks.py)

ANSWER = "Yes"  # text of the assistant turns rendered here


@check(
    "make pad, end tokens and tokenizer those of this checkpoint; where a turn ends with another token, add that to "
    "eos_token_id in the model's generation config",
    moved=False,
)
def special_tokens(s: Subject):
    """End tokens are known and end a turn of the template; all ids are rows of the embedding; one BOS at most."""
    tokenizer, ends, pad = s.models.tokenizer, s.models.eos_ids, s.models.pad_id
    eos, bos, closing = tokenizer.eos_token_id, tokenizer.bos_token_id, turn_end(tokenizer)
    rows = s.models.policy.get_input_embeddings().weight.shape[0]
    prompts = [list(row["prompt_ids"]) for row in s.trainer.rows]
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
    text = f"end {names}; pad {pad}{' is an end token too' * (pad in ends)}; {len(tokenizer)} tokens, embedding {rows}"
    found = [fault for fault, wrong in faults.items() if wrong]
    return not found, "; ".join([text, *found])


def turn_end(tokenizer) -> list[int]:
    """The special tokens with which the chat template closes an assistant turn."""
    if not tokenizer.chat_template:
        return []
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]
    text = tokenizer.apply_chat_template(chat, tokenize=False).rpartition(ANSWER)[2]
    special = set(tokenizer.all_special_ids)
    return [i for i in tokenizer(text, add_special_tokens=False).input_ids if i in special]


@check(
    "encode chat prompts with add_generation_prompt=True, and let the template's generation prompt be what it writes "
    "before an assistant's text (no space at its end)",
    moved=False,
)
def template_ends_at_generation(s: Subject):
    """The ids of a prompt are those of prompt + answer up to where the answer starts."""
    tokenizer = s.models.tokenizer
    chats = [row for row in s.trainer.rows if s.trainer.chat_of(row)]
    if not tokenizer.chat_template:
        return None, "no chat template"
    if not chats:
        return None, "plain prompts, which bypass the chat template: an instruct model needs --chat, or chat messages"
    settings = json.loads(getattr(s.trainer.config, "chat_template_kwargs", "") or "{}")
    for row in chats:
        turns = [*s.trainer.chat_of(row), {"role": "assistant", "content": ANSWER}]
        whole = tokenizer.apply_chat_template(turns, return_dict=True, **settings)["input_ids"]
        if not starts_answer(tokenizer, list(row["prompt_ids"]), list(whole)):
            ends = tokenizer.decode(row["prompt_ids"])[-30:]
            return False, f"prompt ends {ends!r}, with an answer it is {tokenizer.decode(whole)[-60:]!r}"
    ends = tokenizer.decode(chats[0]["prompt_ids"])[-30:]
    return True, f"{len(chats)} prompts end where an assistant turn starts: {ends!r}"


def starts_answer(tokenizer, ids: list[int], whole: list[int]) -> bool:
    """Whether `whole` is `ids` followed by ANSWER; an empty thinking part may stand on either side."""
    tail = tokenizer.decode(whole[len(ids) :])
    if whole[: len(ids)] != ids:
        prompt, text = tokenizer.decode(ids), tokenizer.decode(whole)
        head = re.sub(r"<think>\s*(</think>\s*)?$", "", prompt)  # opened by the generation prompt of reasoning models
        if head == prompt or not text.startswith(head):
            return False
        tail = text[len(head) :]
    return re.sub(r"^\s*<think>\s*</think>", "", tail).lstrip().startswith(ANSWER)


@check("mend the reward function named here: one finite number or None per completion", moved=False)
def reward_answers(s: Subject):
    """The reward functions answer for samples of the untouched policy."""
    if not s.trainer.scored:
        return None, "no reward: nothing is scored"
    samples, _ = s.trainer.sampled()
    scores, parts = s.trainer.scores(samples)
    finite = len(scores) == len(samples) and all(math.isfinite(score) for score in scores)
    text = f"{len(scores)} scores, mean {statistics.fmean(scores):.3g}, std {statistics.pstdev(scores):.3g}"
    for name, values in parts.items():
        known = [value for value in values if value is not None]
        text += f"; {name} {statistics.fmean(known):.3g}" if known else f"; {name} not applicable"
    if len(set(scores)) == 1:
        longest = f"at most {s.trainer.config.max_new_tokens} tokens long here"
        example = samples[0]["completion"][:40]
        text += f" (warning: all equal, nothing to learn from these; they are {longest}, as {example!r})"
    return finite, text


# ------------------------------------------------------- advantage checks (src/programs/selfcheck/advantage_checks.py)

GAMMA, LAMBDA = 0.9, 0.8
# holes in two rows, pads on either side
RESPONSES = (
    (0, 0, 1, 1, 1, 1, 1, 1, 1),
    (0, 0, 0, 1, 0, 0, 1, 1, 0),
    (0, 0, 1, 1, 1, 0, 0, 0, 0),
    (0, 0, 1, 0, 1, 1, 0, 1, 1),
)


@check("set weight and bias of the value head to 0: values of a random head are noise in every advantage", moved=False)
def value_head_zero(s: Subject):
    """A new critic values everything at 0."""
    batch = s.experience()
    if "values" not in batch or not has_critic(s):
        return None, "no critic with a value head"
    peak = at_responses(batch["values"], batch, s.probes).abs().max().item()
    return peak == 0, f"largest value before training {peak:.2g}"


def has_critic(s: Subject) -> bool:
    """Whether a network values texts."""
    import torch

    with torch.no_grad():
        return own_values(s, s.probes[0]) is not None


@check(
    "A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, where t + 1 is the next sampled token: "
    "carry V and A past tokens outside the mask, begin with 0 after the last, and give advantages + values as returns",
    moved=False,
)
def gae_formula(s: Subject):
    """The trainer's gae gives the sum of the paper, over ragged rows with pads and holes."""
    import torch

    if not (getattr(s.trainer, "bare_gae", False) or has_critic(s)):
        return None, "no critic"
    mask = torch.tensor(RESPONSES)
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(mask.shape, generator=generator) * mask for _ in range(2))
    advantages, returns = s.trainer.gae(rewards, values, mask, GAMMA, LAMBDA)
    own, at = own_gae(rewards, values, mask, GAMMA, LAMBDA), mask.bool()
    gaps = [(a - b)[at].abs().max().item() for a, b in ((advantages, own), (returns, own + values))]
    text = f"advantages {gaps[0]:.1e} and returns {gaps[1]:.1e} from the formula, gamma {GAMMA}, lambda {LAMBDA}"
    return largest(gaps) <= 1e-4, f"{text}, {int(at.sum())} tokens, {len(mask)} rows, holes in two"


@check(
    "train the critic by vf_coef * the mean over all tokens of the mask of 1/2 max((V - R)^2, (V_old + clip(V - V_old, "
    "-value_clip, value_clip) - R)^2), V of the text before each token"
)
def value_loss_gradient(s: Subject):
    """The critic's gradient is that of the definition, also where the clip bites and in a response with a hole."""
    if not has_critic(s):
        return None, "no critic"
    config = s.trainer.config
    coefficient, clip = config.vf_coef or 0.5, getattr(config, "value_clip", 0.0)
    gaps, ratios = [], []
    batch = with_values(s, clip or 0.2)
    for bound in {clip, 0.0} if clip else {0.0, 0.2} if hasattr(config, "value_clip") else {0.0}:
        settings = {"vf_coef": coefficient} | ({"value_clip": bound} if hasattr(config, "value_clip") else {})
        got = s.trainer.gradients(batch, PROBES, **settings)[1:]
        expected = own_value_gradients(s, batch, bound, coefficient)
        gaps.append(relative(got, expected))
        ratios.append(length_ratio(got, expected))
    text = f"trainer's and defined gradient of the critic {largest(gaps):.1e} apart, "
    return largest(gaps) <= s.limits[1], text + f"{' and '.join(f'{x:.4g}' for x in ratios)} times as long"


def with_values(s: Subject, clip: float) -> dict:
    """The trainer's batch with a hole, and old values and returns on either side of the clip."""
    import torch

    batch, count = {name: x.clone() for name, x in s.settled().items()}, 0
    hole = response_columns(batch, s.probes)[0][1]
    for name in {"response_mask", "loss_mask"} & {*batch}:
        batch[name][0, hole] = 0
    moves, errors = (-3.0, -0.5, 0.5, 3.0), (1.5, -1.5, 0.3, -0.3, 2.5)  # in clips; no two terms are near each other
    for i, columns in enumerate(columns_after_prompts(batch, s.probes)):
        with torch.no_grad():
            values = own_values(s, s.probes[i])
        for value, column in zip(values, columns, strict=True):
            batch["values"][i, column] = value - clip * moves[count % 4]
            batch["returns"][i, column] = value + clip * errors[count % 5]
            count += 1
    return batch


@check("subtract from each score the mean of its own group, whose completions are neighbours in the batch", moved=False)
def group_advantages(s: Subject):
    """The advantages of a group sum to 0, and are 0 where all its scores are equal."""
    groups, reason = s.trainer.group_of(s.probes)
    if not groups:
        return None, reason
    batch = s.experience()
    firsts = first_advantages(s, batch)
    sums = {group: sum(x for g, x in zip(groups, firsts, strict=True) if g == group) for group in groups}
    equal = [sample | {"score": 1.0, "rewards": {"probe": 1.0}} for sample in s.probes]
    flat = first_advantages(s, s.trainer.experience(equal))
    peak, none = largest(map(abs, sums.values())), largest(map(abs, flat))
    text = f"largest sum of a group {peak:.1e} of {largest(map(abs, firsts)):.3g}; of equal scores {none:.1e}"
    return peak <= 1e-4 * max(1.0, largest(map(abs, firsts))) and none <= 1e-3, text


def first_advantages(s: Subject, batch: dict) -> list[float]:
    """The advantage of each completion, at its first token."""
    columns = response_columns(batch, s.probes)
    return [batch["advantages"][i, at[0]].item() for i, at in enumerate(columns)]


# ------------------------------------------------------------- policy checks (src/programs/selfcheck/policy_checks.py)


@check("load the reference from --model and freeze it; with LoRA use the base with its adapters off")
def reference_is_initial(s: Subject):
    """The reference gives the untouched policy's log-probs, while the policy has moved."""
    if s.models.reference is None:
        return None, "no reference: kl_coef is 0, or there is none"
    batch = s.experience()
    passed, text = agree(at_responses(batch["ref_logprobs"], batch, s.probes), s.initial, s.limits[0])
    return passed, f"reference and untouched policy {text}; the policy moved by {s.moved:.2g}"


@check("compute old_logprobs with the policy itself, before the first optimizer step, dropout off, same temperature")
def first_update_ratio(s: Subject):
    """At the first optimizer step of an update the old policy is the current one, not the reference."""
    if not s.trainer.has_policy_loss:
        return None, "the divergence from a teacher has no old policy"
    with_reference, peaks = s.trainer.with_reference, []
    for models in [with_reference] if s.models.reference is not None else [with_reference, s.models]:
        with watching(s.trainer, stop=True) as calls:
            s.trainer.starts_update(s.probes, models)
        rest(s.models)
        if not calls:
            return False, "update() never called the policy loss"
        logprobs, old_logprobs, _ = calls[0]
        peaks.append((logprobs - old_logprobs).abs().max().item())
    peak = largest(peaks)
    text = f"largest |log ratio| {peak:.1e}; policy and reference are {s.moved:.2g} nats apart"
    return peak <= s.limits[0] / 10, text


@check("divide the sampler's logits by the same temperature, without top-p or top-k, and copy weights before sampling")
def sampler_agreement(s: Subject):
    """Log-probs as the sampler saw them are the trainer's."""
    samples, batch = s.trainer.sampled()
    ours = s.response_logprobs(samples, batch | {"response_mask": own_mask(batch, samples)})
    passed, text = agree(at_responses(batch["rollout_logprobs"], batch, samples), ours, s.limits[0])
    return passed, f"sampler and trainer {text}, temperature {s.trainer.config.temperature:g}, {len(ours)} tokens"


@check("take the log-prob of token t from the logits at t - 1, divided by the temperature")
def logprob_shift(s: Subject):
    """The trainer's log-prob of token t is that of the plain model."""
    own = own_logprobs(s) if s.moved else s.initial
    passed, text = agree(s.response_logprobs(s.probes), own, s.limits[0])
    return passed, f"trainer and model {text}, {len(own)} tokens"


@check("pad prompts on the left, mask the pads, and count positions over real tokens only")
def padding(s: Subject):
    """Neither the side nor the amount of padding changes log-probs or greedy completions."""
    import torch

    for mask in s.trainer.laid_out(s.probes)[1]["attention_mask"]:
        real = mask.nonzero().squeeze(-1)
        if real[-1] - real[0] + 1 != len(real):
            return False, "pads stand between a prompt and its response"
    batch = s.trainer.collate(s.probes)
    names, fill = ("input_ids", "attention_mask", "response_mask"), {"input_ids": s.models.pad_id}
    wide = {name: torch.nn.functional.pad(batch[name], (5, 3), value=fill.get(name, 0)) for name in names}
    alone = torch.cat([s.response_logprobs([probe]) for probe in s.probes])
    results = {
        "in a batch": agree(s.response_logprobs(s.probes), alone, s.limits[0]),
        "with more pads": agree(s.response_logprobs(s.probes, wide), alone, s.limits[0]),
    }
    pieces = [s.experience(**s.trainer.per_pass(n)) for n in (1, ALL_ROWS)]  # scripts trim the padding of these
    pieces = [at_responses(x["old_logprobs"].detach(), x, s.probes) for x in pieces if "old_logprobs" in x]
    if pieces:
        results["in micro-batches"] = agree(*pieces, s.limits[0])
    bad = [f"{name} log-probs are {text}" for name, (passed, text) in results.items() if not passed]
    differing = greedy_differences(s)
    if differing:
        bad.append(f"{differing} of {PROBES} greedy completions change in a batch")
    text = f"log-probs {results['with more pads'][1]}; greedy completions the same alone and in a batch"
    return not bad, "; ".join(bad) or text


def greedy_differences(s: Subject) -> int:
    """How many greedy completions differ between a batch and alone, near-ties aside."""
    prompts, count = [probe["prompt_ids"] for probe in s.probes], 0
    for prompt, together in zip(prompts, s.trainer.greedy(prompts), strict=True):
        alone = s.trainer.greedy([prompt])[0]
        same = 0
        while same < min(len(alone), len(together)) and alone[same] == together[same]:
            same += 1
        if same == max(len(alone), len(together)):
            continue
        pair = [{"prompt_ids": prompt, "response_ids": ids[: same + 1]} for ids in (alone, together)]
        a, b = (own_logprobs(s, [sample])[-1].item() for sample in pair)
        count += abs(a - b) > 10 * s.limits[0] or len(pair[0]["response_ids"]) != len(pair[1]["response_ids"])
    return count


@check("divide every micro-batch by the tokens and completions of the whole minibatch, not by its own")
def accumulation(s: Subject):
    """Gradients do not depend on the micro-batches."""
    batch = s.settled()
    width = batch["input_ids"].shape[1]
    one, two, whole = (s.trainer.gradients(batch, PROBES, **s.trainer.per_pass(n, width)) for n in (1, 2, ALL_ROWS))
    worst = largest(relative(parts, whole) for parts in (one, two))
    return worst <= s.limits[1], f"1, 2 and {len(s.probes)} rows per micro-batch: gradients {worst:.1e} apart"


@check("let every piece of the chunked log-probs see its own rows and targets, and the gradient of all of them")
def chunking(s: Subject):
    """Log-probs, entropies and gradients in small pieces are those in one piece."""
    all_at_once = s.trainer.chunked(ALL_ROWS)
    if not all_at_once:
        return None, "the output layer sees all tokens of a pass at once"
    batch, probes = s.settled(), s.trainer.collate(s.probes)
    whole, gradients = s.trainer.logprobs(probes, **all_at_once), s.trainer.gradients(batch, PROBES, **all_at_once)
    passed, gaps, text = True, [], ""
    for size in (1, 5):
        settings = s.trainer.chunked(size)
        for a, b in zip(s.trainer.logprobs(probes, **settings), whole, strict=True):
            close, text = agree(at_responses(a, batch, s.probes), at_responses(b, batch, s.probes), s.limits[0])
            passed = passed and close
        gaps.append(relative(s.trainer.gradients(batch, PROBES, **settings), gradients))
    return passed and largest(gaps) <= s.limits[1], f"entropy {text}; gradients {largest(gaps):.1e} apart"


@check(
    "compute the experience under torch.no_grad() and give the policy loss advantages that are constants; a loss that "
    "is meant to be another than those of the papers fails here too"
)
def advantages_detached(s: Subject):
    """Nothing of the experience carries a gradient, and the policy gradient is that of the definition."""
    graphs = {name for name, x in s.experience().items() if x.requires_grad}
    batch = s.settled()
    with watching(s.trainer) as calls:
        gradients = s.trainer.gradients(batch, PROBES, **s.trainer.without_critic())[:1]
    for _, old, advantages in calls:
        given = {"old_logprobs given to the loss": old, "advantages given to the loss": advantages}
        graphs |= {name for name, x in given.items() if x.requires_grad}
    if graphs:
        return False, f"gradients flow through {', '.join(sorted(graphs))}"
    definitions, reason = s.trainer.definitions()
    if not definitions:
        return None, reason
    comparisons = []  # (relative difference, ratio of the lengths, name of the definition)
    for d in definitions:
        expected = own_policy_gradients(s, batch, d)
        comparisons.append((relative(gradients, expected), length_ratio(gradients, expected), d.name))
        if comparisons[-1][0] <= s.limits[1]:
            break
    worst, ratio, name = min(comparisons)
    text = f"trainer's and defined policy gradient {worst:.1e} apart, {ratio:.4g} times as long"
    return worst <= s.limits[1], text + f" ({name})" * bool(name)


@check("let response_mask be 1 on sampled tokens only, and multiply every per-token loss by it")
def prompt_gradient(s: Subject):
    """Neither prompt nor pad tokens enter the loss."""
    batch = s.settled()
    samples, laid_out = s.trainer.laid_out(s.probes)
    right = own_mask(laid_out, samples)
    wrong, count = int((laid_out["response_mask"] != right).sum()), right.numel()
    mask, real = own_mask(batch, s.probes), batch["attention_mask"].bool()
    spoilt = {name: x + 3.0 * (1 - mask) if per_token(x, mask) else x for name, x in batch.items()}
    spoilt["input_ids"] = batch["input_ids"].where(real, batch["input_ids"].new_tensor(s.probes[0]["prompt_ids"][-1]))
    worst = relative(s.trainer.gradients(spoilt, PROBES), s.trainer.gradients(batch, PROBES))
    text = f"response_mask wrong at {wrong} of {count} tokens; "
    return not wrong and worst <= s.limits[1], text + f"gradients {worst:.1e} apart with spoilt prompts and pads"


def per_token(x, mask) -> bool:
    """Whether x holds a number for each token."""
    return x.is_floating_point() and x.shape == mask.shape


# ------------------------------------------------- conversation checks (src/programs/selfcheck/conversation_checks.py)


@dataclass
class Played:
    """One play: what the trainer did, and the conversations of the batch that it made."""

    record: Record
    rows: list[list[int]]  # ids of each conversation, without pads
    masks: list[list[int]]  # of each, likewise
    logprobs: list[list[float]]
    outside: int  # tokens of the mask at pads
    scores: list[float]
    numbers: list[int | None]  # which conversation each is

    def turns(self, row: int) -> list:
        """The answers of a row of the batch, as they were asked for and given."""
        return self.record.turns.get(self.numbers[row], [])


def end_of_turn(s: Subject) -> int:
    """The token that ends an answer: the one by which the template does it, where that is an end token."""
    ends = [*s.models.eos_ids]
    return next((i for i in turn_end(s.models.tokenizer) if i in ends), ends[0])


def played(s: Subject, record: Record) -> Played:
    """Let the trainer play two conversations of each of two rows, whose objects it gets twice, as groups have them."""
    few = [copy.deepcopy(row) for row in s.trainer.rows[:2]]
    for row in few:
        row["columns"][NOTED] = []
    rows = [row for row in few for _ in range(PLAYED // len(few))]
    batch, scores = s.trainer.play(record, rows)
    real = [mask.bool() for mask in batch["attention_mask"].cpu()]
    columns = [[x[at].tolist() for x, at in zip(batch[name].cpu(), real, strict=True)] for name in NAMES]
    outside = int((batch["response_mask"].cpu() * (1 - batch["attention_mask"].cpu())).ne(0).sum())
    numbers = [number_of(s.models.tokenizer.decode(ids)) for ids in columns[0]]
    if not record.turns:
        raise ValueError("the trainer sampled nothing by the sampler that it is checked with; see --contract")
    if len(numbers) != len(rows):
        raise ValueError(f"{len(rows)} rows gave {len(numbers)} conversations")
    return Played(record, *columns, outside, [float(x) for x in scores], numbers)


NAMES = ("input_ids", "response_mask", "rollout_logprobs")


def odd_play(s: Subject, paid: int | None = None) -> Played:
    """A play in which the text of an answer, encoded anew, has other ids."""
    tokenizer = s.models.tokenizer
    return played(s, Record(tokenizer, odd_answers(tokenizer, end_of_turn(s)), paid))


def first_difference(one: list[int], two: list[int]) -> int:
    """The first place at which two lists differ."""
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def broken_turn(s: Subject, play: Played, row: int) -> str:
    """How a conversation of the batch departs from what was sampled; "" where it does not."""
    turns, ids, decode = play.turns(row), play.rows[row], s.models.tokenizer.decode
    if not turns:
        return "it holds no word of its conversation: what reset returns is to stand after the prompt"
    for i, turn in enumerate(turns):
        expected = turn.prompt + turn.ids
        follows, place = (turns[i + 1].prompt, f"the prompt of turn {i + 2}") if turns[i + 1 :] else (ids, "the batch")
        if follows[: len(expected)] == expected:
            continue
        at = first_difference(expected, follows)
        where = f"of turn {i + 1}" if at >= len(turn.prompt) else "before it"
        start = len(turn.prompt) if at >= len(turn.prompt) else max(0, at - 2)
        one, two = (x[start : start + max(8, at - start + 4)] for x in (expected, follows))
        text = f"{place} departs from what was sampled, {where}: {one} {decode(one)!r} is {two} {decode(two)!r} there"
        same = decode(follows).startswith(decode(expected))
        return f"{text}; the text is the same: it was encoded anew" if same else text
    return ""


@check(
    "append the ids that were sampled to those before them, and what the chat template has between two answers after "
    "them; neither decode and encode an answer, nor render the conversation anew",
    moved=False,
    plays=True,
)
def turn_ids(s: Subject):
    """Ids that were sampled stay in place, in the next turn's prompt and in the batch."""
    play = odd_play(s)
    count = sum(len(turns) for turns in play.record.turns.values())
    faults = [f"conversation {i}: {text}" for i in range(PLAYED) if (text := broken_turn(s, play, i))]
    if faults:
        return False, f"{faults[0]} ({len(faults)} of {PLAYED} conversations)"
    if count == PLAYED:
        return None, "no conversation has a second answer: the trainer's limits allow one"
    odd = sum(anew(s.models.tokenizer, turn.ids) != turn.ids for turns in play.record.turns.values() for turn in turns)
    return True, f"{count} answers of {PLAYED} conversations are as sampled; {odd} of them, encoded anew, are other ids"


def anew(tokenizer, ids: list[int]) -> list[int]:
    """The ids of the text of ids."""
    return tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False)


def expected_mask(play: Played, row: int) -> list[int]:
    """1 on what was sampled."""
    mask = [0] * len(play.rows[row])
    for turn in play.turns(row):
        mask[len(turn.prompt) : len(turn.prompt) + len(turn.ids)] = [1] * len(turn.ids)
    return mask


@check(
    "let response_mask be 1 on sampled tokens alone, an answer's end token among them, and 0 on the prompt, on what "
    "tools and environment say and on the template's tokens between two answers; rollout_logprobs stand there, too",
    moved=False,
    plays=True,
)
def turn_mask(s: Subject):
    """The mask is 1 on what was sampled and on nothing else, and each of these tokens has its own log-prob."""
    play, tokenizer = odd_play(s), s.models.tokenizer
    faults, count = [f"1 on {play.outside} pads"] if play.outside else [], 0
    for row, ids in enumerate(play.rows):
        if broken_turn(s, play, row):
            return None, "what was sampled cannot be found in the batch: see turn_ids"
        mask, expected = [int(x != 0) for x in play.masks[row]], expected_mask(play, row)
        count += sum(expected)
        leaked = [i for i, (a, b) in enumerate(zip(mask, expected, strict=True)) if a > b]
        lost = [i for i, (a, b) in enumerate(zip(mask, expected, strict=True)) if a < b]
        if leaked or lost:
            text = tokenizer.decode([ids[i] for i in leaked[:40]])
            wrong = [f"1 on {len(leaked)} tokens that were not sampled ({text!r})"] if leaked else []
            wrong += [f"0 on {len(lost)} tokens that were sampled"] if lost else []
            faults.append(f"conversation {row}: {', '.join(wrong)}")
        else:
            faults += wrong_logprobs(play, row)
    if faults:
        return False, "response_mask: " + "; ".join(faults)
    return True, f"{count} sampled tokens in {PLAYED} conversations, and no other, with the sampler's log-probs"


def wrong_logprobs(play: Played, row: int) -> list[str]:
    """What is wrong with a conversation's log-probs as the sampler saw them."""
    given = [x for turn in play.turns(row) for x in turn.logprobs]
    kept = [x for x, sampled in zip(play.logprobs[row], expected_mask(play, row), strict=True) if sampled]
    wrong = sum(abs(a - b) > 1e-5 for a, b in zip(given, kept, strict=True))
    return [f"conversation {row}: right, but rollout_logprobs are others' at {wrong} of its tokens"] if wrong else []


@check(
    "ask each conversation's own environment for its return, once its last answer was heard, and keep scores in the "
    "order of the batch",
    moved=False,
    plays=True,
)
def turn_rewards(s: Subject):
    """A return that changes, changes the score of its own conversation and no other."""
    usual, faults = odd_play(s), []
    for paid in range(PLAYED):
        more = odd_play(s, paid)
        if None in more.numbers or sorted(more.numbers) != [*range(PLAYED)]:
            return None, "the batch's conversations cannot be told apart: see turn_ids"
        changed = [i for i, (a, b) in enumerate(zip(usual.scores, more.scores, strict=True)) if abs(a - b) > 1e-6]
        row = more.numbers.index(paid)
        if changed != [row]:
            names = ", ".join(map(str, changed)) or "none"
            faults.append(f"of conversation {row}: score {names} changes with its return")
    early = ", ".join(map(str, sorted(usual.record.early)))
    if early:
        faults.append(f"conversation {early}: asked for the return before its last answer was heard")
    return not faults, "; ".join(faults) or f"{PLAYED} returns, each in the score of its own conversation"


@check(
    "make an environment and a copy of the row for each conversation: what one changes, no other may see",
    moved=False,
    plays=True,
)
def turn_state(s: Subject):
    """Each conversation has its own environment, row, prompt and replies."""
    play, tokenizer = odd_play(s), s.models.tokenizer
    record, faults = play.record, []
    for one, other in record.reused:
        faults.append(f"one environment object serves conversations {one} and {other} at once")
    for number, others in enumerate(record.rows):
        if others:
            names = " and ".join(map(str, others))
            faults.append(f"reset of conversation {number} got columns that reset of {names} had changed")
    for number, turns in sorted(record.turns.items()):
        strangers = numbers_in(tokenizer.decode(turns[-1].prompt)) - {number}
        if strangers:
            faults.append(f"conversation {number} is told what is said in {', '.join(map(str, sorted(strangers)))}")
        faults += wrong_ears(record, tokenizer, number)
    return not faults, "; ".join(dict.fromkeys(faults)) or f"{PLAYED} environments, rows and prompts, none shared"


def wrong_ears(record: Record, tokenizer, number: int) -> list[str]:
    """Answers that another environment heard, and those that none did."""
    turns, heard = record.turns[number], record.heard.get(number, [])
    said = {
        n: [squeezed(tokenizer.decode(t.ids, skip_special_tokens=True)) for t in x] for n, x in record.turns.items()
    }
    others = [
        n for n in sorted(said) for text in heard if squeezed(text) in said[n] and squeezed(text) not in said[number]
    ]
    if others:
        return [
            f"the environment of conversation {number} heard answers of {', '.join(map(str, dict.fromkeys(others)))}"
        ]
    text = f"of {len(turns)} answers of conversation {number} its environment heard {len(heard)}"
    return [text] if len(turns) != len(heard) else []


def squeezed(text: str) -> str:
    """A text without white space."""
    return "".join(text.split())


# drops what was thought in all answers, put before a template's own text
FORGETFUL = (
    "{%- set kept = namespace(messages=[]) -%}{%- for m in messages -%}{%- if m.role == 'assistant' and m.content is "
    "string -%}{%- set kept.messages = kept.messages + [dict(m, content=m.content.split('</think>')[-1].lstrip())] -%}"
    "{%- else -%}{%- set kept.messages = kept.messages + [m] -%}{%- endif -%}{%- endfor -%}"
    "{%- set messages = kept.messages -%}"
)


@check(
    "before a run, put a chat together turn by turn, with thoughts where the template knows them, compare it with what "
    "the template writes for the whole, and stop where they differ, as multi_turn.py's check_template does",
    moved=False,
    plays=True,
)
def turn_template(s: Subject):
    """Turn by turn reads as the template writes the whole; a template for which that cannot be is noticed."""
    unused = s.trainer.uncalled()
    if unused:
        return False, unused
    fault = rewritten(s) if s.trainer.talks else ""
    if fault:
        return False, fault
    tokenizer, template = s.models.tokenizer, s.models.tokenizer.chat_template
    text = "turns read as the template writes them" if s.trainer.talks else "the environment of the run has no reply"
    try:
        tokenizer.chat_template = FORGETFUL + tokenizer.get_chat_template()
        rendered(s, [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<think></think>!"}])
        fault = rewritten(s, thinks=True)
    except (Exception, SystemExit):
        return True, f"{text}; a template that drops what was thought is refused"
    finally:
        tokenizer.chat_template = template
    if fault:
        return False, f"a template that drops what was thought is not noticed: {fault}"
    return True, f"{text}, also with one that drops what was thought"


def rewritten(s: Subject, thinks: bool | None = None) -> str:
    """Where the last turn's prompt is another than what the template writes for the conversation; "" if nowhere."""
    tokenizer = s.models.tokenizer
    prompt = tokenizer.decode(s.trainer.rows[0]["prompt_ids"]).rstrip()
    thinks = "</think>" in tokenizer.get_chat_template() if thinks is None else thinks
    thinks, begun = thinks and not prompt.endswith("</think>"), prompt.endswith("<think>")  # it may be told not to
    play = played(s, Record(tokenizer, thought_answers(tokenizer, end_of_turn(s), thinks, begun)))
    for number, turns in sorted(play.record.turns.items()):
        asked, follow_up = messages_of(s, play.record, number, "<think>" if thinks and begun else "")
        first, last = (squeezed(tokenizer.decode(turns[i].prompt)) for i in (0, -1))
        begin, whole = (squeezed(rendered(s, chat)) for chat in (asked, asked + follow_up))
        got, expected = last[len(first) :], whole[len(begin) :]
        if not whole.startswith(begin) or got != expected:
            at = max(0, first_difference([*got], [*expected]) - 8)
            return (
                f"turn {len(turns)} of conversation {number} goes on from {got[at : at + 60]!r}, where the template "
                f"writes {expected[at : at + 60]!r}"
            )
    return ""


def messages_of(s: Subject, record: Record, number: int, begun: str) -> tuple[list[dict], list[dict]]:
    """A conversation's prompt, and what follows up to its last answer; `begun`: what the template puts before one."""
    end, follow_up = end_of_turn(s), []
    asked = copy.deepcopy(s.trainer.chat_of(s.trainer.rows[number // 2]))
    asked[-1]["content"] += f" [talk {number}]"
    for turn, said in zip(record.turns[number][:-1], record.said.get(number, []), strict=False):
        text = begun + s.models.tokenizer.decode([i for i in turn.ids if i != end])
        follow_up += [{"role": "assistant", "content": text}, {"role": "user", "content": said}]
    return asked, follow_up


def rendered(s: Subject, chat: list[dict]) -> str:
    """A chat up to the next answer, as text."""
    settings = {"tokenize": False, "add_generation_prompt": True, **s.trainer.template_settings()}
    return s.models.tokenizer.apply_chat_template(chat, **settings)


# --------------------------------------------------------------------------------- run (src/programs/selfcheck/run.py)

OF_TURNS = (turn_template, turn_ids, turn_mask, turn_rewards, turn_state)
CHECKS = (
    *(special_tokens, template_ends_at_generation, reward_answers, value_head_zero, gae_formula, group_advantages),
    *(reference_is_initial, first_update_ratio, sampler_agreement, logprob_shift, padding, accumulation, chunking),
    *(advantages_detached, prompt_gradient, value_loss_gradient, *OF_TURNS),
)
# those that need the weights of the run, or its tokens and no network
WHOLE = (special_tokens, template_ends_at_generation, reward_answers, logprob_shift, *OF_TURNS)


def selfcheck(file: str, flags: list[str], partial: bool = False, left_out: tuple = ()) -> list[dict]:
    """Load a trainer with its flags and run the checks; what keeps them from starting is a UserError.

    With `partial` it may lack a part of the contract; checks of that are not run, and say so. Nor are those left out.
    """
    known = [function.__name__ for function in CHECKS]
    for name in left_out:
        need(name in known, f"got --leave_out {name}; expected one of {', '.join(known)}{suggest(name, known)}")
    trainer = load_partial(file) if partial else load_trainer(file)
    need_names(file, trainer.parse(flags))
    settings = trainer.config
    cuts = cuts_for(settings)
    if not cuts:
        return run_checks(prepare(trainer), CHECKS, left_out)
    cut, names = cuts["model"], ", ".join(function.__name__ for function in WHOLE if function not in OF_TURNS)
    size, seconds = cut.parameters / 1e6, expected_seconds(cut)
    say(f"selfcheck: {size:,.0f} million parameters, about {seconds:.0f} s; {names} on all, the rest on {cut}")
    trainer.light = True
    results = run_checks(prepare(trainer), WHOLE, left_out, still=True)
    trainer.models = trainer.with_reference = trainer.engine = None
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        trainer.light, trainer.on_cut = False, True
        trainer.config = on_cuts(settings, cuts, folder)
        others = [function for function in CHECKS if function not in WHOLE]
        results += run_checks(prepare(trainer), others, left_out, where=f"on {cut}: ")
    return sorted(results, key=lambda row: known.index(row["name"]))


def run_checks(s: Subject, checks, left_out: tuple = (), where: str = "", still: bool = False) -> list[dict]:
    """Run checks, a line on stderr for each; one that raises, or ends the program, fails with its exception's text.

    With `still` the policy stays as it was loaded.
    """
    results = []
    for function in checks:
        started, name = time.perf_counter(), function.__name__
        try:
            said = "left out, by --leave_out" if name in left_out else ""
            passed, text = None, said or unchecked(s.trainer, name)
            if not text:
                if function.moved and not (s.moved or still):
                    move(s)
                passed, text = function(s)
                text = where * (passed is not None) + text + aside(s.trainer, name)
        except (Exception, SystemExit) as error:
            rest(s.models)
            said = str(error).removeprefix("error: ")
            passed, text = False, said if isinstance(error, SystemExit) else f"{type(error).__name__}: {said}"
        status = {None: "n/a", True: "pass", False: "FAIL"}[passed if passed is None else bool(passed)]
        seconds = time.perf_counter() - started
        say(f"selfcheck: {name:<28} {status:<5} {seconds:5.1f} s")
        row = {"name": name, "status": status, "measured": " ".join(text.split())[:400]}
        results.append(row | {"try": function.advice if status == "FAIL" else ""})
    return results


def print_table(results: list[dict], seconds: float) -> None:
    """One line per check, then the count of each status."""
    for row in results:
        advice = f" | try: {row['try']}" if row["try"] else ""
        tell(f"{row['name']:<28} {row['status']:<5} {row['measured']}{advice}")
    counts = {status: sum(row["status"] == status for row in results) for status in ("pass", "FAIL", "n/a")}
    tell(", ".join(f"{n} {status}" for status, n in counts.items()), f"in {seconds:.1f} s")


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        usage="selfcheck.py [-h] [--contract] TRAINER.py [the trainer's flags] [--partial] [--leave_out NAME] [--json]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("trainer", metavar="TRAINER.py", nargs="?", help="the script to check; its flags follow")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--partial", action="store_true", help="check what a page has of the contract, tell the rest")
    own = "checks that are not for your method, such as group_advantages for a baseline that is not the group's mean"
    parser.add_argument("--leave_out", "--leave-out", nargs="+", default=[], metavar="NAME", help=own)
    parser.add_argument("--contract", action="store_true", help="print what a trainer must offer, and stop")
    options, flags = parser.parse_known_args(argv)
    if options.contract:
        tell(contract())
        return 0
    if not options.trainer:
        parser.error("got no TRAINER.py; expected it first, then its flags; try templates/ppo.py")
    quiet_environment()
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a reward function may print
            results = selfcheck(options.trainer, flags, options.partial, options.leave_out)
    except UserError as error:
        say(f"error: {error}")
        return error.code
    seconds, passed = time.perf_counter() - started, all(row["status"] != "FAIL" for row in results)
    if options.json:
        report = {"trainer": options.trainer, "passed": passed, "seconds": round(seconds, 1), "checks": results}
        tell(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        print_table(results, seconds)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
