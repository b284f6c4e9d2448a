#!/usr/bin/env python3
# Built from src/programs/generate_dockerfile/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# ///
"""Write a Dockerfile for RL post-training whose versions are known to fit together, and refuse the others.

    base      this bundle's scripts, on a CUDA image or on the CPU
    trl       GRPO with TRL and vLLM
    verl      verl with vLLM, or with SGLang (--sglang), on the images that verl recommends

Versions come from one table with the date and source of each row (--list prints it). A CUDA version without a row is
refused. A .dockerignore is written beside the Dockerfile; existing files are overwritten only with --force.

In the image: pinned packages in layers ordered by how often they change, cache mounts, an ordinary user, a health check
that imports torch, a volume for HF_HOME, labels, no secrets. Tokens are passed when a container starts.

Deliberately left out: images for arm64, ROCm and Ascend; flash-attn and Megatron-LM outside verl's image, because they
compile for hours; further packages, and versions that are not in the table: edit the written file.

    python scripts/generate_dockerfile.py --cuda cpu
    python scripts/generate_dockerfile.py --style trl --compose --devcontainer --output docker/Dockerfile
    python scripts/generate_dockerfile.py --style verl --sglang --output -

Exit codes: 0 written (or listed), 2 bad input, or a combination outside the table.
"""

# Contents
#         48-88  messages  Errors that a user can fix, each with an exit code; messages on stderr; the layout of --help
#         91-94  bundle    Paths of this bundle and of its embedded model, data and rewards; loading its other scripts
#        97-293  dialect   Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and replacements for …
#       296-316  settings  Settings: dataclasses whose fields are flags and YAML keys, and the checks that all …
#       319-699  command   An image by a row of the table of compatible versions, the files beside its Dockerfile, …

import argparse
import difflib
import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass
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


# --------------------------------------------------------------- command (src/programs/generate_dockerfile/command.py)

UBUNTU = r"""# syntax=docker/dockerfile:1
# @NAME@, made by scripts/generate_dockerfile.py; needs BuildKit

FROM @UV@ AS uv

FROM @IMAGE@
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG DEBIAN_FRONTEND=noninteractive

# Ubuntu 24.04 keeps these versions for its whole life, but for security fixes
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean \
    && apt-get update \
    && apt-get install --yes --no-install-recommends \
        "build-essential=12.10*" \
        "ca-certificates=20*" \
        "git=1:2.43.*"@SYSTEM@

RUN if getent passwd 1000; then userdel --remove "$(getent passwd 1000 | cut -d: -f1)"; fi \
    && if ! getent group 1000; then groupadd --gid 1000 trainer; fi \
    && useradd --create-home --uid 1000 --gid 1000 --shell /bin/bash trainer \
    && install --directory --owner=1000 --group=1000 \
        /opt/python /opt/venv /workspace /cache/huggingface

COPY --from=uv /uv /uvx /usr/local/bin/
ENV \
    HF_HOME="/cache/huggingface" \
    PYTHONUNBUFFERED="1" \
    VIRTUAL_ENV="/opt/venv" \
    PATH="/opt/venv/bin:$PATH" \
    UV_PYTHON_INSTALL_DIR="/opt/python" \
    UV_LINK_MODE="copy" \
    UV_HTTP_TIMEOUT="300"
USER 1000:1000

# torch first, as the largest and least often changed; each layer names it again, so that none can replace it
RUN --mount=type=cache,target=/home/trainer/.cache/uv,uid=1000,gid=1000 \
    uv venv --seed --allow-existing --python 3.12 /opt/venv \
    && uv pip install@INDEX@ "torch==@TORCH@"
RUN --mount=type=cache,target=/home/trainer/.cache/uv,uid=1000,gid=1000 \
    uv pip install \
        "torch==@TORCH@" \
        @PINS@ \
    && uv pip check

@COPIES@WORKDIR /workspace

VOLUME ["/cache/huggingface"]
HEALTHCHECK --interval=5m --timeout=2m --start-period=2m --retries=3 \
    CMD ["python", "-c", \
        "import torch; assert torch.__version__.split('+')[0] == '@TORCH@'; assert torch.ones(2).sum() == 2"]
LABEL \
    org.opencontainers.image.title="@NAME@" \
    org.opencontainers.image.description="RL post-training of language models: @PURPOSE@" \
    org.opencontainers.image.base.name="@IMAGE@"
CMD ["/bin/bash"]
"""
VERL = r"""# syntax=docker/dockerfile:1
# @NAME@, made by scripts/generate_dockerfile.py; needs BuildKit

FROM @IMAGE@
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

ENV \
    HF_HOME="/cache/huggingface" \
    PYTHONUNBUFFERED="1" \
    PIP_BREAK_SYSTEM_PACKAGES="1"
# without dependencies, as verl's documents say: they are in the image
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/var/cache/pip \
    python3 -m pip install --cache-dir=/var/cache/pip --no-deps \
        @PINS@

RUN if getent passwd 1000; then userdel --remove "$(getent passwd 1000 | cut -d: -f1)"; fi \
    && if ! getent group 1000; then groupadd --gid 1000 trainer; fi \
    && useradd --create-home --uid 1000 --gid 1000 --shell /bin/bash trainer \
    && install --directory --owner=1000 --group=1000 /cache/huggingface /workspace
USER 1000:1000
WORKDIR /workspace

VOLUME ["/cache/huggingface"]
HEALTHCHECK --interval=5m --timeout=2m --start-period=2m --retries=3 \
    CMD ["python3", "-c", \
        "import torch; assert torch.__version__.split('+')[0] == '@TORCH@'; assert torch.ones(2).sum() == 2"]
LABEL \
    org.opencontainers.image.title="@NAME@" \
    org.opencontainers.image.description="RL post-training of language models: @PURPOSE@" \
    org.opencontainers.image.base.name="@IMAGE@"
CMD ["/bin/bash"]
"""
PINS = """\
# What fits together, each row with its date and source. Versions were resolved for Linux x86-64 and Python 3.12.

[images]  # tags that exist
uv = "ghcr.io/astral-sh/uv:0.12.20"                   # 2026-11-21, Dockerfiles in public repositories build on it
cpu = "ubuntu:24.04"                                  # 2026-11-21, Docker's official image of the release
"12.6" = "nvidia/cuda:12.6.3-{kind}-ubuntu24.04"      # 2026-11-21, as above; compatibility tables of replicate/cog
"12.8" = "nvidia/cuda:12.8.1-{kind}-ubuntu24.04"      # the same
"13.0" = "nvidia/cuda:13.0.2-{kind}-ubuntu24.04"      # 2026-08-22, verl docker/Dockerfile.stable.vllm
"13.2" = "nvidia/cuda:13.2.1-{kind}-ubuntu24.04"      # 2026-11-21, as 12.6

# CUDA version -> torch, and the CUDA version of its wheel on PyPI: others come from torch's own index
# 2026-11-21, Requires-Dist of the wheels on PyPI; other CUDA versions as installed in public repositories
[base.torch]
"13.0" = ["2.13.0", "13.0"]
"12.6" = ["2.13.0", "13.0"]
cpu = ["2.13.0", "13.0"]
"12.8" = ["2.11.0", "13.0"]
"13.2" = ["2.15.0", "13.2"]

[base.pins]  # what this bundle was tested with, with torch 2.13.0: requirements.txt
transformers = "5.23.0"
tokenizers = "0.23.3"
safetensors = "0.8.0"
peft = "0.21.2"
trl = "1.16.0"
accelerate = "1.15.0"
datasets = "5.2.0"
math-verify = "0.9.0"
jsonschema = "4.26.0"
referencing = "0.37.0"
numpy = "2.4.6"
pyarrow = "26.0.1"
pyyaml = "6.0.3"
tqdm = "4.70.1"
matplotlib = "3.11.2"
plotly = "7.1.0"
jinja2 = "3.1.6"
tensorboard = "2.21.0"
wandb = "0.31.0"
trackio = "0.43.0"

[trl]
as_in_base = [
  "transformers", "peft", "accelerate", "datasets", "math-verify", "pyyaml", "tqdm", "matplotlib", "tensorboard",
  "wandb",
]

# vLLM names torch exactly, trl[vllm] a range of vLLM: 2026-11-21, Requires-Dist of the wheels on PyPI
[trl.torch]
"13.0" = ["2.13.0", "13.0"]
"12.8" = ["2.10.0", "12.8"]

[trl."13.0"]  # the newest vLLM that takes this bundle's transformers
vllm = "0.30.0"
"trl[vllm]" = "1.16.0"

[trl."12.8"]  # for drivers before 580; TRL is older than this bundle's scripts need
vllm = "0.19.1"
"trl[vllm]" = "1.13.0"

# verl's own images lack verl, and have other versions of what verl 0.9.1 needs: 2026-08-22, verl docker/ at 1dda039
[verl.torch]
"13.0" = ["2.11.0", "13.0"]

[verl.images]
vllm = "verlai/verl:vllm024.dev2@sha256:b867883b0dd011363e69ab2ab344922a28c5bd0409e2a324e3ee70fb27ca7543"  # vLLM 0.24.0
sglang = "verlai/verl:sgl0512.dev4"  # SGLang 0.5.12

[verl.pins]
verl = "0.9.1"
transformers = "5.9.0"
TransferQueue = "0.1.11"
tensordict = "0.10.0"
"""
STYLES = {"base": "this bundle", "trl": "GRPO with TRL and vLLM", "verl": "verl"}
COMPOSE = """\
services:
  trainer:
    image: "@NAME@"
    build:
      context: "@CONTEXT@"
      dockerfile: "@DOCKERFILE@"
    platform: linux/amd64
    init: true
    stdin_open: true
    tty: true
    shm_size: "16gb"  # torch and NCCL share tensors through it
    stop_grace_period: 2m  # a trainer saves on SIGTERM
    volumes:
      - ".:/workspace"
      - "hf-cache:/cache/huggingface"
    environment:  # by name: values come from your shell
      - HF_TOKEN
      - WANDB_API_KEY
    network_mode: host  # verl, as its documents start it
    cap_add: [SYS_ADMIN]  # verl
    deploy:  # GPU
      resources:  # GPU
        reservations:  # GPU
          devices:  # GPU
            - driver: nvidia  # GPU
              count: all  # GPU
              capabilities: [gpu]  # GPU
volumes:
  hf-cache: {}
"""
DEVCONTAINER = """\
{
  "name": "RL post-training",
  "dockerComposeFile": "../compose.yaml",
  "service": "trainer",
  "workspaceFolder": "/workspace",
  "remoteUser": "trainer",
  "customizations": {"vscode": {"extensions": ["ms-python.python", "charliermarsh.ruff"]}}
}
"""
BUNDLE_FOLDERS = ("assets", "examples", "references", "scripts", "templates")
ONLY_BUNDLE = ["# only what the Dockerfile copies", "*", *(f"!{folder}" for folder in BUNDLE_FOLDERS)]
NO_SECRETS = [
    *("# history, environments, secrets, results", ".git", ".venv*", ".env*", "**/*.pem", "**/*.key", "runs", "wandb"),
    *("outputs", "checkpoints", "**/*.safetensors", "**/*.pt", ".cache", ".devcontainer"),
]
COMPILED = ["**/__pycache__", "**/*.pyc"]


@dataclass(frozen=True)
class ImagePlan:
    """All that a Dockerfile is made from."""

    style: str
    cuda: str
    torch: str
    index: str  # torch's own package index if PyPI's wheel is for another CUDA version, else ""
    image: str  # image to start from
    pins: dict[str, str]
    name: str

    @property
    def requirements(self) -> list[str]:
        return [f"{name}=={version}" for name, version in {"torch": self.torch, **self.pins}.items()]

    def context(self, output: Path) -> Path:
        return BUNDLE if self.style == "base" else output.absolute().parent

    @property
    def dockerfile(self) -> str:
        copies = [f"COPY --chown=1000:1000 {folder} /opt/rl-training-code/{folder}" for folder in BUNDLE_FOLDERS]
        values = {
            "NAME": self.name,
            "PURPOSE": STYLES[self.style],
            "SYSTEM": ' \\\n        "libnuma1=2.0.18*"' if self.style == "trl" else "",
            "COPIES": "\n".join([*copies, "", ""]) if self.style == "base" else "",
            "UV": tomllib.loads(PINS)["images"]["uv"],
            "IMAGE": self.image,
            "TORCH": self.torch,
            "INDEX": f" --index-url {self.index}" if self.index else "",
            "PINS": " \\\n        ".join(f'"{name}=={version}"' for name, version in self.pins.items()),
        }
        return re.sub("@([A-Z]+)@", lambda mark: values[mark[1]], VERL if self.style == "verl" else UBUNTU)


def make_plan(style: str, cuda: str, sglang: bool) -> ImagePlan:
    """Plan an image from the table; UserError if it has no such CUDA version, or for SGLang without verl."""
    advice = "try another; nanochat is installed by `uv sync` in a clone of it"
    need(style in STYLES, f"got --style {style}; expected one of {', '.join(STYLES)}; {advice}")
    table = tomllib.loads(PINS)
    rows = table[style]
    cuda = cuda or next(iter(rows["torch"]))
    need(not sglang or style == "verl", f"got --sglang with --style {style}; expected --style verl")
    known, got = list(rows["torch"]), f"got --cuda {cuda} with --style {style}"
    need(cuda in known, f"{got}; expected one of {', '.join(known)} (--list); try --style {style} --cuda {known[0]}")
    torch, on_pypi = rows["torch"][cuda]
    pins = rows.get(cuda, {}) | {name: table["base"]["pins"][name] for name in rows.get("as_in_base", ())}
    pins, engine = pins | rows.get("pins", {}), "sglang" if sglang else "vllm"
    wheel = cuda if cuda == "cpu" else f"cu{cuda.replace('.', '')}"
    index = "" if cuda == on_pypi else f"https://download.pytorch.org/whl/{wheel}"
    if style == "verl":
        image, part = rows["images"][engine], f"{engine}-"
    else:
        kind = "devel" if style == "trl" else "base"  # vLLM compiles kernels while it runs
        image, part = table["images"][cuda].format(kind=kind), f"vllm{pins['vllm']}-" if "vllm" in pins else ""
    name = f"rl-{style}:{part}torch{torch}-{wheel}"
    return ImagePlan(style, cuda, torch, index, image, pins, name)


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help, allow_abbrev=False)
    parser.add_argument("--style", default="base", help="what the image is for: base, trl or verl")
    parser.add_argument("--cuda", default="", help="CUDA version, such as 12.8, or cpu (default: the style's first)")
    parser.add_argument("--sglang", action="store_true", help="with --style verl: the image with SGLang, not vLLM")
    parser.add_argument("--output", default="Dockerfile", help="file to write, or - for stdout and no other file")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    parser.add_argument("--compose", action="store_true", help="also write compose.yaml")
    parser.add_argument(
        "--devcontainer", action="store_true", help="also write .devcontainer/devcontainer.json and compose.yaml"
    )
    parser.add_argument("--list", action="store_true", help="print the table of versions and end")
    return parse_flags(parser, argv)


def compose(plan: ImagePlan, output: Path) -> str:
    """compose.yaml for the image: GPUs, shared memory, caches, and tokens from the environment."""
    folder, context, text = output.absolute().parent, plan.context(output), COMPOSE
    for mark, fits in {"GPU": plan.cuda != "cpu", "verl": plan.style == "verl"}.items():
        text = re.sub(rf"(?m)  # {mark}$" if fits else rf"(?m)^.*# {mark}\b.*\n", "", text)
    values = {"NAME": plan.name, "CONTEXT": os.path.relpath(context, folder)}
    values["DOCKERFILE"] = os.path.relpath(output.absolute(), context)
    return re.sub('"@([A-Z]+)@"', lambda mark: json.dumps(values[mark[1]]), text)


def run_flags(plan: ImagePlan) -> list[str]:
    """Flags of `docker run`; torch and NCCL share tensors through /dev/shm."""
    flags = ["--shm-size=16g"] if plan.cuda == "cpu" else ["--gpus=all", "--shm-size=16g"]
    return flags + (["--network=host", "--cap-add=SYS_ADMIN"] if plan.style == "verl" else [])


def commands(plan: ImagePlan, output: Path) -> dict[str, str]:
    """Shell commands that build, run and push the image."""
    program = {
        "base": "python /opt/rl-training-code/scripts/ppo_train.py --steps 5 --output_dir runs/first",
        "trl": "vllm serve --help",
        "verl": "python3 -m verl.trainer.main_ppo --help",
    }[plan.style]
    tokens = ["--volume", "hf-cache:/cache/huggingface", "--env", "HF_TOKEN", "--env", "WANDB_API_KEY"]
    build = ["docker", "build", "--platform", "linux/amd64", "--file", str(output), "--tag", plan.name]
    start = ["docker", "run", "--rm", "-it", "--init", *run_flags(plan), *tokens]
    return {
        "build": shlex.join([*build, os.path.relpath(plan.context(output))]),
        "run": f'{shlex.join(start)} --volume "$PWD:/workspace" {plan.name} {program}',
        "push": f'docker tag {plan.name} "$REGISTRY/{plan.name}" && docker push "$REGISTRY/{plan.name}"',
    }


def write(files: dict[Path, str], force: bool) -> None:
    """Write all files; UserError, and none is written, if one exists with another text and `force` is off."""
    kept = [str(path) for path, text in files.items() if path.exists() and path.read_text("utf-8") != text]
    need(force or not kept, f"got {', '.join(kept)}, which exist; expected new files; try --force or another --output")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def generate(args: argparse.Namespace) -> None:
    """Write the files and print a report as JSON; UserError for bad input."""
    plan = make_plan(args.style, args.cuda, args.sglang)
    base, output = plan.style == "base", Path(args.output)
    missing = [name for name in BUNDLE_FOLDERS if base and not (BUNDLE / name).is_dir()]
    need(not missing, f"got no {', '.join(missing)} beside this script; expected the whole bundle; try --style trl")
    if args.output == "-":
        need(not args.compose and not args.devcontainer, "got --output - and a second file; try --output Dockerfile")
        tell(plan.dockerfile, end="")
        return
    if output.is_dir():
        output /= "Dockerfile"
    # BuildKit prefers NAME.dockerignore beside the Dockerfile; the context may be another folder
    ignore = output.parent / (f"{output.name}.dockerignore" if base else ".dockerignore")
    files = {output: plan.dockerfile, ignore: "\n".join([*(ONLY_BUNDLE if base else NO_SECRETS), *COMPILED, ""])}
    if args.compose or args.devcontainer:
        files[output.parent / "compose.yaml"] = compose(plan, output)
    if args.devcontainer:
        files[output.parent / ".devcontainer" / "devcontainer.json"] = DEVCONTAINER
    write(files, args.force)
    trl, tested = plan.pins.get("trl[vllm]"), make_plan("base", "", False).pins["trl"]
    if trl not in (None, tested):
        say(f"note: trl {trl} for CUDA {plan.cuda}; this bundle was tested with {tested}")
    report = {"files": [str(path) for path in files], "image": plan.name, "from": plan.image}
    tell(json.dumps(report | {"requirements": plan.requirements, "commands": commands(plan, output)}, indent=2))


def main(argv: list[str] | None = None) -> int:
    try:
        args = read_flags(argv)
        if args.list:
            tell(PINS, end="")
        else:
            generate(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"error: got {error}; expected a folder to write to; try another --output", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
