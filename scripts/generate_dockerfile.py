#!/usr/bin/env python3
# Built from src/programs/generate_dockerfile/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# ///
"""Write a Dockerfile for RL post-training whose versions are known to fit together, and refuse the others.

    base      this bundle's scripts, on a CUDA image or on the CPU
    trl       GRPO with TRL and vLLM
    verl      verl with vLLM or SGLang: on the image that verl recommends, or from CUDA up (--verl_base cuda)
    nanochat  nanochat at one commit, by uv and its lock file, as that project does it

The tables below are data, each row with its date and source: image tags, what torch's wheels are built for, and the
versions that fit together by the packages' own metadata. Settings choose a row, the first that has them all; where none
does, nothing is written and the nearest row is named. Beside the Dockerfile stands its .dockerignore; existing files
stay as they are unless --force is given.

In the image: pinned packages in layers ordered by how often they change, cache mounts, an ordinary user, a health check
that imports torch, a volume for HF_HOME, labels, no secrets. Tokens are passed when a container starts.

Deliberately left out: images for arm64, ROCm and Ascend; pins of what the pinned packages pull in (--from_env has them,
from an installed environment). Versions were resolved for Linux x86-64; the tables say what was never built.

    python scripts/generate_dockerfile.py --cuda cpu --print_build
    python scripts/generate_dockerfile.py --style trl --vllm 0.30.0 --compose --devcontainer --output docker/Dockerfile
    python scripts/generate_dockerfile.py --style verl --verl_base cuda --sglang --extra liger-kernel==0.8.2 --output -

Exit codes: 0 written (or listed), 2 bad input, or a combination outside the table.
"""

# Contents
#         58-83  messages    Errors that a user can mend, each with its exit code, and what is said on stderr
#         86-89  bundle      Where this bundle and its embedded model, data and rewards lie
#        92-222  dialect     One setting under several names: ours, those of the pages, and TRL's. A program answers …
#       225-256  settings    Settings: a dataclass whose fields are flags and YAML keys, and the checks that all …
#       259-363  tables      Tables of images and versions
#       366-399  flags       Settings
#       402-505  stacks      What fits together
#       508-615  choice      Choosing a row
#       618-816  pins        What is pinned
#      819-1000  dockerfile  The Dockerfile
#     1003-1131  outputs     The files beside it
#     1134-1237  command     The command line

import argparse
import contextlib
import difflib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


class UserError(Exception):
    """Something the user can mend; printed without a traceback. `code` is the exit code."""

    code = 2


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


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


# ------------------------------------------------------------------------- settings (src/parts/foundation/settings.py)


class BaseConfig:
    """What the Config of every program is; the parts name the fields that they read."""

    given = frozenset()  # names of the settings that the command line or its YAML file has
    reuse_prefill = True  # a setting of those that sample in every step
    attn_implementation = "auto"  # a setting of those that train or evaluate
    share_prompts = False  # a setting of those that train without a library's trainer
    eval_rows = 0  # of those that evaluate as they train
    score_while_sampling = "never"  # of those that train


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """The names of a parser's flags, with `_`."""
    return [flag_name(flag) for action in parser._actions for flag in action.option_strings if flag_name(flag)]


def parse_flags(parser: argparse.ArgumentParser, argv: list[str] | None, elsewhere=()) -> argparse.Namespace:
    """Parse a command line, whose flags may have other programs' names; an unknown one is told the nearest known."""
    argv, names = sys.argv[1:] if argv is None else argv, flags_of(parser)
    try:
        known, unknown = parser.parse_known_args(in_own_words(argv, names, elsewhere))
    except UserError as error:
        parser.error(str(error))
    if unknown:
        name = unknown[0].split("=")[0]
        follows = relation(flag_name(name), names, flag_values(argv))
        near = f"; {follows}" if follows else suggest(name, [f"--{name}" for name in names])
        parser.error(f"got unknown argument {unknown[0]!r}; expected a flag of --help{near}")
    return known


# ----------------------------------------------------------------- tables (src/programs/generate_dockerfile/tables.py)

BUNDLE_FOLDERS = ("assets", "examples", "references", "scripts", "templates")


@dataclass(frozen=True)
class Image:
    """A tag that exists. `use`: uv, cpu, base (CUDA's driver interface only), devel (with nvcc), or verl's."""

    use: str
    cuda: str
    tag: str
    date: str
    source: str


@dataclass(frozen=True)
class Wheel:
    """The CUDA versions of one release of torch: that of the wheel on PyPI, and those of torch's own index."""

    torch: str
    pypi: str
    others: tuple[str, ...]
    flash_attn: str  # the release that others have built for it, or empty
    date: str
    source: str


@dataclass(frozen=True)
class Stack:
    """Versions that fit together. `pins` are installed, `held` are in the image already."""

    style: str
    base: str  # cuda, or image: verl's own
    cudas: tuple[str, ...]
    pythons: tuple[str, ...]  # the first is the default
    pins: dict[str, str]
    date: str
    source: str
    held: dict[str, str] = field(default_factory=dict)
    flash_attn: str = ""
    flash_attn_on: bool = False
    megatron: dict[str, str] = field(default_factory=dict)  # with Python 3.12 only
    note: str = ""

    @property
    def versions(self) -> dict[str, str]:
        """Every version that the row names."""
        return {**self.held, **self.pins}


# what this bundle was tested with
BUNDLE_PINS = {
    "transformers": "5.23.0",
    "tokenizers": "0.23.3",
    "safetensors": "0.8.0",
    "peft": "0.21.2",
    "trl": "1.16.0",
    "accelerate": "1.15.0",
    "datasets": "5.2.0",
    "math-verify": "0.9.0",
    "jsonschema": "4.26.0",
    "referencing": "0.37.0",
    "numpy": "2.4.6",
    "pyarrow": "26.0.1",
    "pyyaml": "6.0.3",
    "tqdm": "4.70.1",
    "matplotlib": "3.11.2",
    "plotly": "7.1.0",
    "jinja2": "3.1.6",
    "tensorboard": "2.21.0",
    "wandb": "0.31.0",
    "trackio": "0.43.0",
}
TRL_PINS = {
    "peft": "0.21.2",
    "accelerate": "1.15.0",
    "datasets": "5.2.0",
    "math-verify": "0.9.0",
    "pyyaml": "6.0.3",
    "tqdm": "4.70.1",
    "matplotlib": "3.11.2",
    "tensorboard": "2.21.0",
    "wandb": "0.31.0",
}
# verl 0.9.1 names these in its extra `verl-core` or imports them unasked
VERL_PINS = {
    "verl": "0.9.1",
    "TransferQueue": "0.1.11",
    "tensordict": "0.10.0",
    "ray[default]": "2.60.0",
    "torchdata": "0.11.0",
    "cachetools": "8.0.1",
    "uvicorn": "0.54.0",
    "msgspec": "0.22.0",
    "pyzmq": "27.3.0",
}
MEGATRON_PINS = {"megatron-core": "0.18.0", "mbridge": "0.15.1", "transformer-engine[pytorch]": "2.16.1"}
# what the source packages of flash-attn and Transformer Engine import while they build
BUILD_PINS = {"setuptools": "80.10.2", "wheel": "0.48.0", "ninja": "1.13.2", "psutil": "7.2.2", "pybind11": "3.1.0"}
# Ubuntu 24.04 keeps these versions for its whole life, but for security fixes
APT_PINS = {"build-essential": "12.10*", "ca-certificates": "20*", "git": "1:2.43.*", "libnuma1": "2.0.18*"}
NANOCHAT_COMMIT = "92d63d4e8bb4df75c3b71618f31ddde2378b2bcd"
PYTHONS = ("3.12", "3.11", "3.13")
ROOT_HOME = "/root"  # in the image


# ------------------------------------------------------------------- flags (src/programs/generate_dockerfile/flags.py)


def flag_field(default, help, choices=None):
    """A dataclass field that carries what its flag shows."""
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass
class Config(BaseConfig):
    """All settings and their defaults; every field is a flag."""

    style: str = flag_field(
        "", "what the image is for (default: base, or what the others ask for)", ("base", "trl", "verl", "nanochat")
    )
    cuda: str = flag_field("", "CUDA version, as 13.0, or cpu (default: the row's first)")
    python: str = flag_field("", "Python version, as 3.12 (default: the row's first)")
    torch: str = flag_field("", "version of torch")
    vllm: str = flag_field("", "version of vLLM; without a value, any")
    sglang: str = flag_field("", "version of SGLang, for verl; without a value, any")
    verl: str = flag_field("", "version of verl")
    verl_base: str = flag_field("", "verl on its own image, or from CUDA up (default: image)", ("image", "cuda"))
    flash_attn: bool = flag_field(None, "compile flash-attn into the image (default: with verl from CUDA up)")
    megatron: bool = flag_field(False, "with Megatron-LM, for verl; verl's image has it")
    extra: tuple = flag_field((), "further exact pin, as liger-kernel==0.8.2; may be repeated")
    from_env: bool = flag_field(False, "pin what is installed in the environment that runs this script")
    user: str = flag_field("trainer:1000", "user of the container, as NAME or NAME:UID")
    output: str = flag_field("Dockerfile", "file to write, or - for stdout and no other file")
    force: bool = flag_field(False, "overwrite existing files")
    compose: bool = flag_field(False, "also write compose.yaml")
    devcontainer: bool = flag_field(False, "also write .devcontainer/devcontainer.json")
    print_build: bool = flag_field(False, "also print the commands that build, run and push")
    list: bool = flag_field(False, "print the tables and end")
    json: bool = flag_field(False, "with --list: as JSON")


# ----------------------------------------------------------------- stacks (src/programs/generate_dockerfile/stacks.py)

COG = "compatibility tables of replicate/cog at 6110c91"
USED = "Dockerfiles in public repositories build on it"
IMAGES = (
    Image("uv", "", "ghcr.io/astral-sh/uv:0.12.20", "2026-11-21", USED),
    Image("cpu", "cpu", "ubuntu:24.04", "2026-11-21", "Docker's official image of the release"),
    Image("base", "12.6", "nvidia/cuda:12.6.3-base-ubuntu24.04", "2026-11-21", USED),
    Image("base", "12.8", "nvidia/cuda:12.8.1-base-ubuntu24.04", "2026-11-21", USED),
    Image("base", "13.0", "nvidia/cuda:13.0.2-base-ubuntu24.04", "2026-11-21", USED),
    Image("base", "13.2", "nvidia/cuda:13.2.1-base-ubuntu24.04", "2026-11-21", USED),
    Image("devel", "12.6", "nvidia/cuda:12.6.3-devel-ubuntu24.04", "2026-11-21", f"{USED}; {COG}"),
    Image("devel", "12.8", "nvidia/cuda:12.8.1-devel-ubuntu24.04", "2026-11-21", f"{USED}; {COG}"),
    Image("devel", "13.0", "nvidia/cuda:13.0.2-devel-ubuntu24.04", "2026-08-22", "verl docker/Dockerfile.stable.vllm"),
    Image("devel", "13.2", "nvidia/cuda:13.2.1-devel-ubuntu24.04", "2026-11-21", f"{USED}; {COG}"),
    Image(
        "verl-vllm",
        "13.0",
        "verlai/verl:vllm024.dev2@sha256:b867883b0dd011363e69ab2ab344922a28c5bd0409e2a324e3ee70fb27ca7543",
        "2026-08-22",
        "target of verl docker/Dockerfile.stable.vllm, image of its CI at 1dda039; the digest as two users pin it",
    ),
    Image("verl-sglang", "13.0", "verlai/verl:sgl0512.dev4", "2026-08-22", "verl docker/Dockerfile.stable.sglang"),
)

PYPI = "Requires-Dist of the wheels on PyPI"
BUILT = "flash-attn as built by mjun0812/flash-attention-prebuild-wheels at 2614dc8"
INDEX_USED = "other CUDA versions as installed in public repositories"
WHEELS = (
    Wheel("2.13.0", "13.0", ("12.6", "cpu"), "2.8.3", "2026-11-21", f"{PYPI}; {INDEX_USED}; {BUILT}"),
    Wheel("2.15.0", "13.2", (), "", "2026-11-21", PYPI),
    Wheel("2.14.1", "13.0", (), "", "2026-11-21", PYPI),
    Wheel("2.12.1", "13.0", (), "2.8.3", "2026-11-21", f"{PYPI}; {BUILT}"),
    Wheel("2.11.0", "13.0", ("12.8", "12.6", "cpu"), "2.8.3", "2026-11-21", f"{PYPI}; {COG}; {BUILT}"),
    Wheel("2.10.0", "12.8", ("13.0", "12.6", "cpu"), "2.8.3", "2026-11-21", f"{PYPI}; {COG}; {BUILT}"),
    Wheel("2.9.1", "12.8", ("cpu",), "", "2026-11-21", f"{PYPI}; pyproject.toml of nanochat"),
)


def trl_stack(torch: str, vllm: str, transformers: str, trl: str, cuda: str, note: str = "") -> Stack:
    """A row of the style trl; the extra makes a resolver check TRL's range of vLLM."""
    pins = {"torch": torch, "vllm": vllm, "trl[vllm]": trl, "transformers": transformers, **TRL_PINS}
    source = f"{PYPI}: vllm names torch exactly, trl[vllm] a range of vllm; {BUILT}"
    return Stack("trl", "cuda", (cuda,), PYTHONS, pins, "2026-11-21", source, flash_attn="2.8.3", note=note)


def verl_stack(engine: dict[str, str], transformers: str, source: str, note: str) -> Stack:
    """A row of verl from CUDA up."""
    pins = {"torch": "2.11.0", **engine, "transformers": transformers, **VERL_PINS}
    row = Stack("verl", "cuda", ("13.0",), ("3.12", "3.11"), pins, "2026-11-21", source, note=note)
    return Stack(**{**vars(row), "flash_attn": "2.8.3", "flash_attn_on": True, "megatron": MEGATRON_PINS})


def verl_image_stack(engine: dict[str, str], note: str) -> Stack:
    """A row of verl on its own image, which lacks only verl and what verl 0.9.1 wants newer."""
    pins = {"verl": "0.9.1", "transformers": "5.9.0", "TransferQueue": "0.1.11", "tensordict": "0.10.0"}
    held = {"torch": "2.11.0", **engine, "flash-attn": "2.8.3", "megatron-core": "0.18.0"}
    source = f"verl docker/ at 1dda039; {PYPI}"
    return Stack("verl", "image", ("13.0",), ("3.12",), pins, "2026-08-22", source, held=held, note=note)


NOT_BUILT = "flash-attn and Megatron's packages resolve, but compile at build time: not built here."
STACKS = (
    *(
        Stack(
            style="base",
            base="cuda",
            cudas=(wheel.pypi, *wheel.others),
            pythons=PYTHONS,
            pins={"torch": wheel.torch, **BUNDLE_PINS},
            date=wheel.date,
            flash_attn=wheel.flash_attn,
            source=f"requirements.txt; {wheel.source}",
            note="" if wheel.torch == "2.13.0" else "this bundle's tests run with torch 2.13.0",
        )
        for wheel in WHEELS
        if wheel.torch != "2.9.1"
    ),
    trl_stack("2.13.0", "0.30.0", "5.23.0", "1.16.0", "13.0", "the newest vLLM that takes this bundle's transformers"),
    trl_stack("2.13.0", "0.31.0", "5.17.0", "1.16.0", "13.0", "vLLM takes transformers < 5.18: not our scripts'"),
    trl_stack("2.13.0", "0.29.0", "5.23.0", "1.16.0", "13.0"),
    trl_stack("2.13.0", "0.27.1", "5.23.0", "1.16.0", "13.0"),
    trl_stack("2.11.0", "0.24.0", "5.23.0", "1.16.0", "13.0"),
    trl_stack("2.10.0", "0.19.1", "5.23.0", "1.13.0", "12.8", "for drivers before 580; TRL older than our scripts'"),
    verl_image_stack({"vllm": "0.24.0"}, "the image has transformers 5.3.0, which verl 0.9.1 and vllm 0.24.0 refuse"),
    verl_stack({"vllm": "0.24.0", "fastapi": "0.136.3"}, "5.9.0", f"{PYPI}: verl[vllm] names them exactly", NOT_BUILT),
    verl_image_stack({"sglang": "0.5.12"}, "verl[sglang] overrides sglang's transformers 5.6.0, which verl excludes"),
    verl_stack(
        {"sglang": "0.5.13", "fastapi": "0.165.0"},
        "5.8.1",
        f"{PYPI}: 0.5.12 wants transformers 5.6.0, which verl 0.9.1 excludes; 0.5.13 wants 5.8.1",
        NOT_BUILT,
    ),
    Stack(
        style="nanochat",
        base="cuda",
        cudas=("12.8", "cpu"),
        pythons=("3.10", "3.11", "3.12"),
        pins={"torch": "2.9.1"},
        date="2026-07-03",
        source=f"pyproject.toml, uv.lock and .python-version of karpathy/nanochat at {NANOCHAT_COMMIT[:7]}",
        note="the rest by its lock file; numpy 1.26.4 has no wheel for Python 3.13",
    ),
)


# ----------------------------------------------------------------- choice (src/programs/generate_dockerfile/choice.py)


@dataclass(frozen=True)
class Choice:
    """One row of the table with one of its CUDA and Python versions."""

    stack: Stack
    cuda: str
    python: str

    @property
    def facts(self) -> dict[str, str]:
        """The value of each setting; empty where the row has none."""
        versions = self.stack.versions
        is_image = self.stack.base == "image"
        flash_attn = self.stack.held.get("flash-attn", "") or (self.cuda != "cpu" and self.stack.flash_attn) or ""
        megatron = is_image or (self.python == "3.12" and self.stack.megatron)
        return {
            "style": self.stack.style,
            "verl_base": self.stack.base if self.stack.style == "verl" else "",
            "cuda": self.cuda,
            "python": self.python,
            **{name: versions.get(name, "") for name in ("torch", "vllm", "sglang", "verl")},
            "flash_attn": flash_attn,
            "megatron": versions.get("megatron-core", MEGATRON_PINS["megatron-core"]) if megatron else "",
        }


# how much it hurts to change a setting: another style is further away than another Python
WEIGHTS = {
    "style": 25,
    "verl": 12,
    "vllm": 10,
    "sglang": 10,
    "torch": 10,
    "cuda": 8,
    "megatron": 6,
    "flash_attn": 6,
    "verl_base": 4,
    "python": 3,
}


def choices() -> Iterator[Choice]:
    """Every combination that the table allows, defaults first."""
    for stack in STACKS:
        for cuda in stack.cudas:
            for python in stack.pythons:
                yield Choice(stack, cuda, python)


def fits(wanted: str | bool, got: str) -> bool:
    """Whether a row's value is the one asked for: True means any, `2.13` any 2.13.x."""
    if wanted is True:
        return bool(got)
    return wanted is False or got == wanted or got.startswith(f"{wanted}.")


def version_gap(wanted: str | bool, got: str) -> float:
    """Distance of two versions in [0, 1); 1 where one of them is none."""
    pairs = [[int(number) for number in re.findall(r"\d+", str(v))] for v in (wanted, got)]
    if not all(pairs):
        return 1.0
    longest = max(map(len, pairs))
    one, two = (numbers + [0] * (longest - len(numbers)) for numbers in pairs)
    gap = sum(abs(a - b) * 0.01**place for place, (a, b) in enumerate(zip(one, two, strict=True)))
    return gap / (1 + gap)


def distance(wanted: dict, choice: Choice) -> float:
    """What changing the settings to those of a row would cost."""
    facts = choice.facts
    # what an image holds cannot be left out of it
    held = {name for name, value in wanted.items() if value is False and name.replace("_", "-") in choice.stack.held}
    misfits = [name for name, value in wanted.items() if name in held or not fits(value, facts[name])]
    missing = sum(20 for name in misfits if not facts[name])
    return missing + sum(WEIGHTS[name] + version_gap(wanted[name], facts[name]) for name in misfits)


def as_flags(wanted: dict, facts: dict[str, str] | None = None) -> str:
    """The settings as a command line; with `facts`, at that row's values."""
    words = []
    for name, value in wanted.items():
        got = value if facts is None else facts[name]
        if name == "flash_attn":
            words.append("--flash_attn" if got and value else "--no_flash_attn")
        elif name == "megatron":
            words += ["--megatron"] if got else []
        elif got is True:
            words.append(f"--{name}")
        elif got:
            words += [f"--{name}", str(got)]
    return " ".join(words)


def choose(wanted: dict) -> Choice:
    """The first row with every setting asked for; where there is none, an error that names the nearest."""
    found = next((choice for choice in choices() if distance(wanted, choice) == 0), None)
    if found is None:
        facts = min(choices(), key=lambda choice: distance(wanted, choice)).facts
        nearest = as_flags({"style": True, **wanted}, facts)
        raise UserError(
            f"got {as_flags(wanted)}; expected a row of the table (--list), the nearest that works has "
            + ", ".join(f"{name} {facts[name]}" for name in list(facts)[:-2] if facts[name])
            + f"; try {nearest}"
        )
    return found


# --------------------------------------------------------------------- pins (src/programs/generate_dockerfile/pins.py)


def plain_name(name: str) -> str:
    """A distribution's normalized name, without its extras."""
    return re.sub(r"[-_.]+", "-", name.split("[")[0]).lower()


def read_extras(texts: list[str], taken: dict[str, str]) -> dict[str, str]:
    """Parse repeated --extra NAME==VERSION.

    Raises:
        UserError: The text is no exact pin, or the table pins that package already.
    """
    extras = {}
    for text in texts:
        match = re.fullmatch(r"([A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?)==([A-Za-z0-9][\w.!+-]*)", text, re.ASCII)
        need(match, f"got --extra {text!r}; expected NAME==VERSION, an exact pin; try --extra liger-kernel==0.8.2")
        name, version = match.groups()
        known = {plain_name(key): value for key, value in {**taken, **extras}.items()}
        need(
            known.get(plain_name(name), version) == version,
            f"got --extra {text}; expected a package that is not pinned yet ({name}=={known.get(plain_name(name))}); "
            "try another row of the table (--list)",
        )
        extras[name] = version
    return extras


def installed_pins(names: list[str]) -> tuple[dict[str, str], list[str]]:
    """Versions installed here of `names` and of all that they pull in, and what has no release on an index.

    A requirement under a marker counts where its package is installed: one pin too many does no harm.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    pins, local, queue = {}, [], [plain_name(name) for name in names]
    seen = set(queue)
    while queue:
        name = queue.pop(0)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if re.search("dir_info|vcs_info", found.read_text("direct_url.json") or ""):
            local.append(name)
        else:
            pins[name] = found.version.split("+")[0]
        wanted = [line for line in found.requires or [] if not re.search(r"\bextra\s*==", line)]
        more = [plain_name(re.match(r"[\w.-]+", line)[0]) for line in wanted]
        queue += [other for other in dict.fromkeys(more) if other not in seen]
        seen.update(more)
    return pins, local


def env_settings(wanted: dict) -> dict:
    """What the environment that runs this script settles: Python, torch, and the style's engine.

    Raises:
        UserError: torch is not installed, or another Python was asked for.
    """
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("torch", "vllm", "sglang", "verl"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    asked = wanted.get("python", here)
    need(asked == here, f"got --python {asked} with --from_env; expected {here}, which runs this script; try without")
    by_package = "verl" if "verl" in found else "trl" if "vllm" in found else "base"
    style = wanted.get("style", by_package)
    own = style == "nanochat" or wanted.get("verl_base") == "image"
    need(
        not own, "got --from_env for an image with versions of its own; expected another style; try without --from_env"
    )
    names = {"base": ("torch",), "trl": ("torch", "vllm"), "verl": ("torch", "vllm", "sglang", "verl")}[style]
    missing = {"base": {"torch"}, "trl": {"torch", "vllm"}, "verl": {"torch", "verl"}}[style] - set(found)
    need(
        not missing,
        f"got an environment without {', '.join(sorted(missing))}; expected it for --style {style}; "
        "try this script with the Python of another environment, or no --from_env",
    )
    settled = {"style": style, "python": here, **{name: found[name].split("+")[0] for name in names if name in found}}
    built_for = re.search(r"\+cu(\d+)(\d)$", found["torch"])
    settled |= {"cuda": f"{built_for[1]}.{built_for[2]}"} if built_for else {}
    settled |= {"verl_base": "cuda"} if style == "verl" else {}
    return {**settled, **wanted}


@dataclass(frozen=True)
class ImagePlan:
    """All that a Dockerfile is made from."""

    choice: Choice
    pins: dict[str, str]
    extras: dict[str, str]
    flash_attn: str
    megatron: bool
    user: str
    uid: int
    output: str
    local: tuple[str, ...] = ()

    @property
    def style(self) -> str:
        """The style of the row."""
        return self.choice.stack.style

    @property
    def torch(self) -> str:
        """The version of torch in the image."""
        return self.choice.facts["torch"]

    @property
    def image(self) -> str:
        """The tag that the image starts from."""
        stack, cuda = self.choice.stack, self.choice.cuda
        if stack.base == "image":
            use = "verl-vllm" if "vllm" in stack.held else "verl-sglang"
        elif cuda == "cpu":
            use = "cpu"
        else:
            # vLLM and SGLang compile kernels while they run, flash-attn and Megatron's packages when they install
            use = "devel" if self.flash_attn or self.style in ("trl", "verl") else "base"
        return next(row.tag for row in IMAGES if row.use == use and row.cuda == cuda)

    @property
    def wheel_index(self) -> str:
        """torch's own index, where PyPI's wheel is for another CUDA; else empty."""
        wheel = next(row for row in WHEELS if row.torch == self.torch)
        cuda = self.choice.cuda
        name = cuda if cuda == "cpu" else f"cu{cuda.replace('.', '')}"
        return "" if cuda == wheel.pypi else f"https://download.pytorch.org/whl/{name}"

    @property
    def source_pins(self) -> dict[str, str]:
        """Packages without a wheel that fits; empty where there are none."""
        pins = {"flash-attn": self.flash_attn} if self.flash_attn else {}
        pins.update(self.choice.stack.megatron if self.megatron else {})
        return pins

    @property
    def build_pins(self) -> dict[str, str]:
        """What those need to build."""
        return {name: version for name, version in BUILD_PINS.items() if self.source_pins and name not in self.pins}

    @property
    def requirements(self) -> list[str]:
        """Every pin that a RUN line installs, as a resolver takes them."""
        pins = {**self.pins, **self.build_pins, **self.source_pins, **self.extras}
        return [f"{name}=={version}" for name, version in pins.items()]

    @property
    def name(self) -> str:
        """The name and tag of the image."""
        facts = self.choice.facts
        engine = "".join(f"{name}{facts[name]}-" for name in ("vllm", "sglang") if facts[name])
        cuda = self.choice.cuda if self.choice.cuda == "cpu" else f"cu{self.choice.cuda.replace('.', '')}"
        return f"rl-{self.style}:{engine}torch{self.torch}-{cuda}"

    @property
    def context(self) -> Path:
        """The folder that the build may copy from."""
        return BUNDLE if self.style == "base" else Path(self.output).absolute().parent


def make_plan(config: Config) -> ImagePlan:
    """Settle every setting.

    Raises:
        UserError: A combination outside the table, or a setting of the wrong form.
    """
    match = re.fullmatch(r"([a-z_][a-z0-9_-]{0,30})(?::(\d{1,6}))?", config.user, re.ASCII)
    need(match, f"got --user {config.user!r}; expected NAME or NAME:UID in lower case; try --user trainer:1000")
    user, uid = match[1], int(match[2] or (0 if match[1] == "root" else 1000))
    need((user == "root") == (uid == 0), f"got --user {config.user}; expected 0 for root only; try --user trainer:1000")
    wanted = {name: getattr(config, name) for name in WEIGHTS if getattr(config, name) not in (None, "")}
    if not config.megatron:
        del wanted["megatron"]
    if config.from_env:
        wanted = env_settings(wanted)
    by_setting = "verl" if {"verl", "sglang", "verl_base", "megatron"} & set(wanted) else "base"
    style = "trl" if "vllm" in wanted and by_setting == "base" else by_setting
    choice = choose({"style": style, **wanted})
    stack = choice.stack
    asked = stack.flash_attn_on if config.flash_attn is None else config.flash_attn
    flash_attn = stack.flash_attn if (asked or config.megatron) and stack.flash_attn else ""
    need(
        not (config.megatron and config.flash_attn is False),
        "got --megatron --no_flash_attn; expected flash-attn, which verl's extra `megatron` asks for; try one of them",
    )
    pins, local = dict(stack.pins), []
    if config.from_env:
        pins, local = installed_pins(list(pins))
        pins.pop("flash-attn", None)
    extras = read_extras(config.extra, {**stack.held, **pins, **({"flash-attn": flash_attn} if flash_attn else {})})
    megatron = config.megatron and stack.base != "image"
    return ImagePlan(choice, pins, extras, flash_attn, megatron, user, uid, config.output, tuple(local))


# --------------------------------------------------------- dockerfile (src/programs/generate_dockerfile/dockerfile.py)


def run_line(*commands: list[str], mounts: tuple[str, ...] = ()) -> list[str]:
    """A RUN instruction; the words of a command after its first stand on lines of their own."""
    lines = [f"RUN {mount}" if i == 0 else f"    {mount}" for i, mount in enumerate(mounts)]
    for position, (first, *words) in enumerate(commands):
        start = "RUN " if position == 0 and not mounts else "    " if position == 0 else "    && "
        lines += [f"{start}{first}", *(f"        {word}" for word in words)]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def pin_words(pins: dict[str, str]) -> list[str]:
    """Pins in double quotes, as a shell would else read `[` and `<`."""
    return [f'"{name}=={version}"' for name, version in pins.items()]


def pairs(values: dict[str, str]) -> list[str]:
    """NAME="value" lines of one instruction."""
    *lines, last = [f'    {name}="{value}"' for name, value in values.items()]
    return [*(f"{line} \\" for line in lines), last]


def uv_cache(plan: ImagePlan) -> tuple[str, ...]:
    """uv's cache, which outlives the build, owned by the user who fills it."""
    folder, owner = (f"/home/{plan.user}", f",uid={plan.uid},gid={plan.uid}") if plan.uid else (ROOT_HOME, "")
    return (f"--mount=type=cache,target={folder}/.cache/uv{owner}",)


def system_lines(plan: ImagePlan) -> list[str]:
    """Ubuntu's packages; the cache mounts keep what was fetched out of the image."""
    caches = ("/var/cache/apt", "/var/lib/apt/lists")
    packages = {name: v for name, v in APT_PINS.items() if name != "libnuma1" or plan.style in ("trl", "verl")}
    return run_line(
        ["rm -f /etc/apt/apt.conf.d/docker-clean"],
        ["apt-get update"],
        ["apt-get install --yes --no-install-recommends", *(f'"{n}={version}"' for n, version in packages.items())],
        mounts=tuple(f"--mount=type=cache,target={folder},sharing=locked" for folder in caches),
    )


def user_lines(plan: ImagePlan) -> list[str]:
    """An ordinary user who owns the folders to write to; Ubuntu 24.04's images have one of id 1000 already."""
    folders = ["/cache/huggingface", "/workspace"]
    if plan.choice.stack.base == "cuda":
        folders = ["/opt/python", "/opt/venv", *folders]
    if plan.style == "nanochat":
        folders += ["/cache/nanochat", "/opt/nanochat"]
    made = [f"install --directory --owner={plan.uid} --group={plan.uid} {' '.join(folders)}"]
    if not plan.uid:
        return run_line(made)
    uid = plan.uid
    return run_line(
        [f'if getent passwd {uid}; then userdel --remove "$(getent passwd {uid} | cut -d: -f1)"; fi'],
        [f"if ! getent group {uid}; then groupadd --gid {uid} {plan.user}; fi"],
        [f"useradd --create-home --uid {uid} --gid {uid} --shell /bin/bash {plan.user}"],
        made,
    )


def environment_lines(plan: ImagePlan) -> list[str]:
    """Environment variables; none is a secret."""
    values = {"HF_HOME": "/cache/huggingface", "PYTHONUNBUFFERED": "1"}
    if plan.choice.stack.base == "image":
        values |= {"PIP_BREAK_SYSTEM_PACKAGES": "1"}
    else:
        values |= {"VIRTUAL_ENV": "/opt/venv", "PATH": "/opt/venv/bin:$PATH", "UV_PYTHON_INSTALL_DIR": "/opt/python"}
        values |= {"UV_LINK_MODE": "copy", "UV_HTTP_TIMEOUT": "300"}
    if plan.style == "nanochat":
        values |= {"UV_PROJECT_ENVIRONMENT": "/opt/venv", "NANOCHAT_BASE_DIR": "/cache/nanochat"}
        values |= {"OMP_NUM_THREADS": "1"}
    return ["ENV \\", *pairs(values)]


def package_lines(plan: ImagePlan) -> list[str]:
    """torch first, as the largest and least often changed; then the rest, then what compiles, then the extras.

    Each layer names torch again, so that none can replace it.
    """
    mounts = uv_cache(plan)
    torch = {"torch": plan.torch}
    rest = {name: version for name, version in plan.pins.items() if name != "torch"}
    index = f" --index-url {plan.wheel_index}" if plan.wheel_index else ""
    lines = [
        *run_line(
            [f"uv venv --seed --allow-existing --python {plan.choice.python} /opt/venv"],
            [f"uv pip install{index}", *pin_words(torch)],
            mounts=mounts,
        ),
        *run_line(["uv pip install", *pin_words({**torch, **rest})], ["uv pip check"], mounts=mounts),
    ]
    if plan.source_pins:
        lines += ["# compiles for minutes to hours; lower MAX_JOBS where memory runs out", "ARG MAX_JOBS=8"]
        lines += run_line(
            ["uv pip install", *pin_words({**torch, **plan.build_pins})],
            ["uv pip install --no-build-isolation", *pin_words({**torch, **plan.source_pins})],
            ["uv pip check"],
            mounts=mounts,
        )
    if plan.extras:
        lines += run_line(["uv pip install", *pin_words({**torch, **plan.extras})], ["uv pip check"], mounts=mounts)
    return lines


def image_package_lines(plan: ImagePlan) -> list[str]:
    """What verl's own image lacks; without dependencies, as its documents say: they are in the image."""
    steps = [["python3 -m pip install --no-deps", *pin_words(plan.pins)]]
    if plan.extras:
        held = {"torch": plan.torch, **plan.pins}
        steps.append(["python3 -m pip install", *pin_words({**held, **plan.extras})])
    return run_line(*steps, mounts=(f"--mount=type=cache,target={ROOT_HOME}/.cache/pip",))


def nanochat_lines(plan: ImagePlan) -> list[str]:
    """nanochat at its commit, and what its lock file names."""
    mounts = uv_cache(plan)
    extra = "cpu" if plan.choice.cuda == "cpu" else "gpu"
    lines = [
        "WORKDIR /opt/nanochat",
        *run_line(
            ["git init --quiet ."],
            [f"git fetch --quiet --depth 1 https://github.com/karpathy/nanochat.git {NANOCHAT_COMMIT}"],
            ["git checkout --quiet FETCH_HEAD"],
        ),
        *run_line(
            [f"uv venv --allow-existing --python {plan.choice.python} /opt/venv"],
            [f"uv sync --frozen --extra {extra} --python /opt/venv/bin/python"],
            mounts=mounts,
        ),
    ]
    if plan.extras:
        extras = pin_words({"torch": plan.torch, **plan.extras})
        lines += run_line(["uv pip install", *extras], ["uv pip check"], mounts=mounts)
    return lines


def health_command(plan: ImagePlan) -> list[str]:
    """Import torch, see that it is the pinned one, and use it."""
    code = f"import torch; assert torch.__version__.split('+')[0] == '{plan.torch}'; assert torch.ones(2).sum() == 2"
    return ["python3" if plan.choice.stack.base == "image" else "python", "-c", code]


def label_lines(plan: ImagePlan) -> list[str]:
    """Labels; last, as changing one would rebuild what follows it."""
    facts = {name: value for name, value in plan.choice.facts.items() if name not in ("flash_attn", "megatron")}
    facts |= {"flash_attn": plan.flash_attn, "megatron": plan.choice.facts["megatron"] if plan.megatron else ""}
    labels = {
        "org.opencontainers.image.title": plan.name,
        "org.opencontainers.image.description": f"RL post-training of language models: {plan.style}",
        "org.opencontainers.image.base.name": plan.image,
        **{f"rl-training-code.{name}": value for name, value in facts.items() if value},
    }
    return ["LABEL \\", *pairs(labels)]


def bundle_lines(plan: ImagePlan) -> list[str]:
    """This bundle's files, which change more often than any package."""
    owner = f"--chown={plan.uid}:{plan.uid} " if plan.uid else ""
    return [f"COPY {owner}{folder} /opt/rl-training-code/{folder}" for folder in BUNDLE_FOLDERS]


def dockerfile(plan: ImagePlan) -> str:
    """The text of the Dockerfile."""
    is_image = plan.choice.stack.base == "image"
    uv = next(row.tag for row in IMAGES if row.use == "uv")
    user = [f"USER {plan.uid}:{plan.uid}"] if plan.uid else []
    lines = ["# syntax=docker/dockerfile:1", f"# {plan.name}, made by scripts/generate_dockerfile.py; needs BuildKit"]
    lines += [f"# {plan.choice.stack.note}"] if plan.choice.stack.note else []
    if is_image:
        lines += ["", f"FROM {plan.image}", 'SHELL ["/bin/bash", "-o", "pipefail", "-c"]', ""]
        lines += [*environment_lines(plan), *image_package_lines(plan), *user_lines(plan), *user]
    else:
        lines += ["", f"FROM {uv} AS uv", "", f"FROM {plan.image}", 'SHELL ["/bin/bash", "-o", "pipefail", "-c"]']
        lines += ["ARG DEBIAN_FRONTEND=noninteractive", "", *system_lines(plan), "", *user_lines(plan), ""]
        lines += ["COPY --from=uv /uv /uvx /usr/local/bin/", *environment_lines(plan), *user, ""]
        lines += nanochat_lines(plan) if plan.style == "nanochat" else package_lines(plan)
    lines += ["", *bundle_lines(plan)] if plan.style == "base" else []
    lines += [] if plan.style == "nanochat" else ["WORKDIR /workspace"]
    volumes = ["/cache/huggingface", *(["/cache/nanochat"] if plan.style == "nanochat" else [])]
    check = "HEALTHCHECK --interval=5m --timeout=2m --start-period=2m --retries=3 \\"
    lines += ["", f"VOLUME {json.dumps(volumes)}", check, f"    CMD {json.dumps(health_command(plan))}"]
    return "\n".join([*lines, *label_lines(plan), 'CMD ["/bin/bash"]', ""])


# --------------------------------------------------------------- outputs (src/programs/generate_dockerfile/outputs.py)


def dockerignore(plan: ImagePlan) -> str:
    """What the build may see: of the bundle only what is copied; else nothing that is large or secret."""
    if plan.style == "base":
        allowed = [f"!{folder}" for folder in BUNDLE_FOLDERS]
        return "\n".join(["# only what the Dockerfile copies", "*", *allowed, "**/__pycache__", "**/*.pyc", ""])
    kept_out = [".git", ".venv*", "**/__pycache__", "**/*.pyc", ".env*", "**/*.pem", "**/*.key", "runs", "wandb"]
    kept_out += ["outputs", "checkpoints", "**/*.safetensors", "**/*.pt", ".cache", ".devcontainer"]
    return "\n".join(["# history, environments, secrets, results", *kept_out, ""])


def caches(plan: ImagePlan) -> dict[str, str]:
    """Named volumes and where they are mounted."""
    more = {"nanochat-cache": "/cache/nanochat"} if plan.style == "nanochat" else {}
    return {"hf-cache": "/cache/huggingface", **more}


def compose(plan: ImagePlan, folder: Path) -> str:
    """A compose file with the GPUs, shared memory, caches, and tokens by name."""
    path = json.dumps(Path(plan.output).name)
    context = json.dumps(os.path.relpath(plan.context, folder))
    if plan.style == "base":
        path = json.dumps(os.path.relpath(Path(plan.output).absolute(), plan.context))
    lines = [
        "services:",
        "  trainer:",
        f"    image: {json.dumps(plan.name)}",
        "    build:",
        f"      context: {context}",
        f"      dockerfile: {path}",
        "    platform: linux/amd64",
        "    init: true",
        "    stdin_open: true",
        "    tty: true",
        '    shm_size: "16gb"  # torch and NCCL share tensors through it',
        "    stop_grace_period: 2m  # a trainer saves on SIGTERM",
        "    volumes:",
        '      - ".:/workspace"',
        *(f"      - {json.dumps(f'{name}:{path}')}" for name, path in caches(plan).items()),
        "    environment:  # by name: values come from your shell",
        "      - HF_TOKEN",
        "      - WANDB_API_KEY",
    ]
    if plan.style == "verl":
        lines += ["    network_mode: host", "    cap_add: [SYS_ADMIN]  # as verl's documents start it"]
    if plan.choice.cuda != "cpu":
        lines += ["    deploy:", "      resources:", "        reservations:", "          devices:"]
        lines += ["            - driver: nvidia", "              count: all", "              capabilities: [gpu]"]
    return "\n".join([*lines, "volumes:", *(f"  {name}: {{}}" for name in caches(plan)), ""])


def devcontainer(plan: ImagePlan, folder: Path) -> str:
    """A devcontainer.json for the folder that holds the Dockerfile."""
    gpu = plan.choice.cuda != "cpu"
    content = {
        "name": plan.name,
        "build": {
            "dockerfile": os.path.relpath(Path(plan.output).absolute(), folder),
            "context": os.path.relpath(plan.context, folder),
            "options": ["--platform=linux/amd64"],
        },
        "runArgs": [*(["--gpus=all"] if gpu else []), *run_flags(plan)],
        "init": True,
        "workspaceFolder": "/workspace",
        "workspaceMount": "source=${localWorkspaceFolder},target=/workspace,type=bind",
        "mounts": [f"source={name},target={path},type=volume" for name, path in caches(plan).items()],
        "remoteUser": plan.user,
        "remoteEnv": {name: f"${{localEnv:{name}}}" for name in ("HF_TOKEN", "WANDB_API_KEY")},
        "hostRequirements": {"gpu": gpu},
        "customizations": {"vscode": {"extensions": ["ms-python.python", "charliermarsh.ruff"]}},
    }
    return json.dumps(content, indent=2) + "\n"


def run_flags(plan: ImagePlan) -> list[str]:
    """Flags of `docker run` that a style needs beside its GPUs."""
    return ["--shm-size=16g", *(["--network=host", "--cap-add=SYS_ADMIN"] if plan.style == "verl" else [])]


def commands(plan: ImagePlan) -> dict[str, str]:
    """Build, run and push, as typed into a shell."""
    what = {
        "base": "python /opt/rl-training-code/scripts/ppo_train.py --steps 5 --output_dir runs/first",
        "trl": "trl vllm-serve --help",
        "verl": "python3 -m verl.trainer.main_ppo --help",
        "nanochat": "python -m scripts.chat_rl --help",
    }[plan.style]
    gpus = [] if plan.choice.cuda == "cpu" else ["--gpus", "all"]
    volumes = [word for name, path in caches(plan).items() for word in ("--volume", f"{name}:{path}")]
    tokens = ["--env", "HF_TOKEN", "--env", "WANDB_API_KEY"]
    build = ["docker", "build", "--platform", "linux/amd64", "--file", plan.output, "--tag", plan.name]
    start = ["docker", "run", "--rm", "-it", "--init", *gpus, *run_flags(plan), *volumes, *tokens]
    return {
        "build": shlex.join([*build, os.path.relpath(plan.context)]),
        "run": f'{shlex.join(start)} --volume "$PWD:/workspace" {plan.name} {what}',
        "push": f'docker tag {plan.name} "$REGISTRY/{plan.name}" && docker push "$REGISTRY/{plan.name}"',
    }


def outputs(plan: ImagePlan, config: Config) -> dict[Path, str]:
    """The files to write, with their text."""
    path = Path(plan.output)
    folder = path.absolute().parent
    # BuildKit reads NAME.dockerignore beside the Dockerfile first; the context may be another folder
    ignore = ".dockerignore" if plan.context == folder else f"{path.name}.dockerignore"
    files = {path: dockerfile(plan), path.parent / ignore: dockerignore(plan)}
    if config.compose:
        files[path.parent / "compose.yaml"] = compose(plan, folder)
    if config.devcontainer:
        files[path.parent / ".devcontainer" / "devcontainer.json"] = devcontainer(plan, folder / ".devcontainer")
    return files


def write(files: dict[Path, str], force: bool) -> None:
    """Write all files, or none.

    Raises:
        UserError: A file exists with another text and force is off, or cannot be written.
    """
    kept = [str(path) for path, text in files.items() if path.exists() and path.read_text("utf-8") != text]
    need(force or not kept, f"got {', '.join(kept)} already there; expected new files; try --force or another --output")
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"got {error} at {path}; expected a folder to write to; try another --output") from error


# --------------------------------------------------------------- command (src/programs/generate_dockerfile/command.py)


def read_flags(argv: "list[str] | None") -> Config:
    """Read the command line; flags work with `_` and `-`."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--flag value ...]    (--help has all flags)",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for entry in fields(Config):
        name, help = entry.name, entry.metadata["help"]
        if entry.default and isinstance(entry.default, str):
            help = f"{help} (default: {entry.default})"
        flags = list(dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]))
        if entry.type is bool:
            parser.add_argument(*flags, dest=name, action="store_true", default=entry.default, help=help)
        elif name == "extra":
            parser.add_argument(*flags, action="append", default=[], metavar="NAME==V", help=help)
        else:
            optional = {"nargs": "?", "const": True} if name in ("vllm", "sglang") else {}
            shown = {"metavar": name.upper()} if entry.metadata["choices"] is None else {}
            more = {"choices": entry.metadata["choices"], **shown, **optional}
            parser.add_argument(*flags, dest=name, default=entry.default, help=help, **more)
    off = {"dest": "flash_attn", "action": "store_false", "default": None, "help": "without flash-attn"}
    parser.add_argument("--no_flash_attn", "--no-flash-attn", **off)
    return Config(**vars(parse_flags(parser, argv)))


def table() -> dict[str, list[dict]]:
    """The tables, as JSON takes them."""
    return {
        "images": [vars(row) for row in IMAGES],
        "wheels": [vars(row) for row in WHEELS],
        "stacks": [{name: value for name, value in vars(row).items() if value} for row in STACKS],
        "ubuntu": [{"package": name, "version": version} for name, version in APT_PINS.items()],
    }


def table_text() -> str:
    """The tables for a reader."""
    lines = ["IMAGES"]
    lines += [f"  {row.use:<12}{row.cuda:<6}{row.tag}  [{row.date}, {row.source}]" for row in IMAGES]
    lines += ["", "TORCH: CUDA of the wheel on PyPI, and of torch's own index"]
    lines += [f"  {row.torch:<8}{row.pypi:<6}{' '.join(row.others):<16}[{row.date}, {row.source}]" for row in WHEELS]
    lines += ["", "STACKS: what fits together; each line is a choice of --style and versions"]
    for row in STACKS:
        base = f" --verl_base {row.base}" if row.style == "verl" else ""
        lines.append(f"  --style {row.style}{base}  cuda {' '.join(row.cudas)}  python {' '.join(row.pythons)}")
        options = {"flash-attn": row.flash_attn} if row.flash_attn else {}
        for title, pins in (("pins", row.pins), ("held", row.held), ("option", {**options, **row.megatron})):
            lines += [f"      {title}: " + " ".join(f"{n}=={v}" for n, v in pins.items())] if pins else []
        lines += [f"      note: {row.note}"] if row.note else []
        lines.append(f"      [{row.date}, {row.source}]")
    return "\n".join(lines)


def generate(config: Config) -> None:
    """Write the files and report them.

    Raises:
        UserError: Bad input.
    """
    if Path(config.output).is_dir():
        config.output = str(Path(config.output) / "Dockerfile")
    plan = make_plan(config)
    missing = [name for name in BUNDLE_FOLDERS if plan.style == "base" and not (BUNDLE / name).is_dir()]
    need(not missing, f"got no {', '.join(missing)} beside this script; expected the whole bundle; try --style trl")
    if plan.local:
        print(f"left out, installed from no index: {', '.join(plan.local)}", file=sys.stderr)
    if not plan.uid:
        print("the container runs as root; try --user trainer:1000", file=sys.stderr)
    if config.output == "-":
        need(not config.compose and not config.devcontainer, "got --output -; expected a file beside; try --output F")
        plan = ImagePlan(**{**vars(plan), "output": "Dockerfile"})
        tell(dockerfile(plan), end="")
        return
    files = outputs(plan, config)
    write(files, config.force)
    report = {"files": [str(path) for path in files], "image": plan.name, "from": plan.image}
    report |= {"requirements": plan.requirements, "note": plan.choice.stack.note}
    if config.print_build:
        report["commands"] = commands(plan)
        print("\n".join(report["commands"].values()), file=sys.stderr)
    tell(json.dumps(report, indent=2))


def main(argv: "list[str] | None" = None) -> int:
    """Command line entry; returns the exit code."""
    config = read_flags(argv)
    try:
        if config.list:
            tell(json.dumps(table(), indent=2) if config.json else table_text())
        else:
            generate(config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
