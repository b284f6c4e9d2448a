#!/usr/bin/env python3
# Built from src/programs/merge_adapter.py by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "numpy", "peft"]
# ///
"""Merge a LoRA adapter into its base: one plain folder for transformers, vLLM or SGLang, checked to be the same model.

    W = W_base + (lora_alpha / r) B A, in fp32 whatever the base's dtype is, then rounded to --dtype    Hu 2021, eq. 3

The folder gets weights, tokenizer, chat template and the base's generation config. stdout has one JSON object that also
says how far log-probs of base + adapter and of the merged model differ, before writing and after reloading the folder.

Deliberately left out: reward models and other heads (task type CAUSAL_LM only); several adapters into one; quantised
bases, which would round part of the update away (give the unquantised model as --base); GPUs: fp32 must fit in memory.

    python scripts/merge_adapter.py runs/x/final --output merged                              # in the base's own dtype
    python scripts/merge_adapter.py adapter --base Qwen/Qwen2.5-0.5B-Instruct --dtype bf16 --output merged

Exit codes: 0 written, 1 written, but the adapter changes nothing, 2 bad input (nothing is written).
"""

# Contents
#        57-109  messages       Errors that a user can fix, each with an exit code; messages on stderr; the layout of …
#       112-120  bundle         Paths of this bundle and of its embedded model, data and rewards; loading its other …
#       123-319  dialect        Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and replacements …
#       322-342  settings       Settings: dataclasses whose fields are flags and YAML keys, and the checks that all …
#       345-389  processes      The processes of a run: lazy torch, device, threads, sums, distribution of rows, …
#       392-410  exit codes     Program exit: errors that a user can fix become a message and an exit code
#       413-438  rows           Read rows of data from JSONL, JSON, CSV, parquet or the hub, and check their prompts
#       441-487  whole models   Refuse what transformers would make a model of by guessing: missing weights, other …
#       490-639  adapters       LoRA adapters: where their base and tokenizer are, loading, merging, saving
#       642-679  output folder  The output folder: which run owns it, folders written whole or not at all, modes by …
#       682-826  merge adapter  Merge a LoRA adapter into its base: one plain folder for transformers, vLLM or …

import argparse
import contextlib
import ctypes
import difflib
import errno
import functools
import importlib
import json
import logging
import os
import re
import shlex
import shutil
import ssl
import sys
import urllib.error
import urllib.request
import warnings
from pathlib import Path

# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, or 120 columns without one."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=32, width=shutil.get_terminal_size((120, 0)).columns - 2)


class UserError(Exception):
    """An error that the user can fix; printed without a traceback. `code` is the exit code."""

    code = 2


FULL = re.compile(r"No space left|os error (28|122)\b|unexpected pos \d+|PytorchStreamWriter failed writing")


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error or one of its causes is a full disk or quota, by errno or a library's message."""
    while error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or FULL.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


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


# --------------------------------------------------------------------------------------- rows (src/parts/data/rows.py)


def is_hub_id(source: str) -> bool:
    """Whether a name could be `owner/name` or `name` on the hub, as it is no local path."""
    name, form = re.split("[:@]", source)[0], r"(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b"  # as the hub's own client has it
    if Path(source).exists() or source.count("/") > 1 or re.search(r"--|\.\.", name):
        return False
    return bool(re.fullmatch(form, name, re.ASCII))


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


# ------------------------------------------------------------------- whole models (src/parts/networks/whole_models.py)

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


# ------------------------------------------------------------------ output folder (src/parts/running/output_folder.py)


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


# ----------------------------------------------------------------------- merge adapter (src/programs/merge_adapter.py)

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
TEXTS = ("The capital of France is", "34+71=", "def double(x):\n    return")
TOLERANCE = 1e-3  # of the largest logit, between base + adapter and the merged weights


def base_name(folder: str, base: str | None) -> str:
    """The base of an adapter that can be merged."""
    settings, got = adapter_settings(folder), f"got the adapter {folder!r}"
    if not settings and (Path(folder) / "config.json").is_file():
        raise UserError(f"{got}, a plain model; expected an adapter; there is nothing to merge: use it as it is")
    need(settings, f"{got}, without adapter_config.json; expected a folder of peft; try a run's final/")
    return base or settings.get("base_model_name_or_path") or ""


def load_base(name: str, folder: str) -> tuple:
    """(the base in fp32, the dtype that it declares, the adapter's tokenizer); without the quantisation of training."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    got = f"got the base {name!r}"
    try:
        check_model_folder(name)
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        quantised = getattr(config, "quantization_config", None)
        need(not quantised, f"{got}, whose weights are quantised; expected the model that it was made from; try --base")
        base = load_whole(AutoModelForCausalLM.from_pretrained, name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_of(folder, name), trust_remote_code=False)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{got} of {folder}: {error}; expected a folder or hub id; try --base") from None
    return base, getattr(config, "dtype", None) or torch.float32, tokenizer


def log_probs(model, batches: list):
    """Log-probs of every next token of the texts, as fp32, [tokens, vocabulary]."""
    import torch

    with torch.no_grad():
        return torch.cat([model(input_ids=ids).logits[0].float().log_softmax(-1) for ids in batches])


def merged_by_layers(model, dtype) -> tuple[float, float]:
    """Merge layer by layer, so that one layer's weights are held twice and not the model.

    Returns:
        The largest change of a weight, and the share of the update that rounding to `dtype` keeps: its projection.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    largest = kept = whole = 0.0
    for module in model.modules():
        pairs = []
        if isinstance(module, BaseTunerLayer):
            weight = getattr(module.get_base_layer(), getattr(module, "parameter_name", "weight"))  # experts have names
            pairs = [(weight.detach().clone(), weight)]
            try:
                module.merge()
            except RuntimeError as error:
                why = str(error).rstrip(".")
                raise UserError(f"got an adapter that peft cannot merge: {why}; try serving it unmerged") from None
        elif isinstance(module, ModulesToSaveWrapper):
            saved = module.modules_to_save[module.active_adapters[0]]
            pairs = zip(module.original_module.parameters(), saved.parameters(), strict=True)
        for before, after in pairs:
            change = (after - before).detach()
            largest, whole = max(largest, change.abs().max().item()), whole + change.square().sum().item()
            kept += (change * (after.to(dtype).float() - before.to(dtype).float())).sum().item()
    return largest, kept / whole if whole else 1.0


def merged_folder(args) -> dict:
    """Merge, compare, write and compare again; what was measured."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, output = args.adapter, Path(args.output)
    name = base_name(folder, args.base)
    need(not output.exists(), f"got --output {output}, which exists; expected a new folder")
    base, saved_dtype, tokenizer = load_base(name, folder)
    dtype = getattr(torch, DTYPES[args.dtype]) if args.dtype else saved_dtype
    batches = [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]
    model = with_adapter(base, folder)
    expected = log_probs(model, batches)
    need(expected.isfinite().all(), f"got log-probs that are not finite, of {name} with {folder}; expected numbers")
    untie(model)
    changed, kept = merged_by_layers(model, dtype)
    merged = model.unload()
    note_untied(merged)
    difference = (log_probs(merged, batches) - expected).abs().max().item()
    limit = TOLERANCE * expected.abs().max().item()
    need(difference <= limit, f"got log-probs that differ by {difference:.3g} after the merge; expected {limit:.3g}")

    def write(target: Path) -> None:
        merged.to(dtype).save_pretrained(target)
        # as it came: being called changes its padding
        AutoTokenizer.from_pretrained(tokenizer.name_or_path).save_pretrained(target)

    write_folder(output, write, "nothing of it is left")
    again = AutoModelForCausalLM.from_pretrained(output, dtype="auto").eval()
    reloaded = log_probs(again, batches)
    if not reloaded.isfinite().all():
        shutil.rmtree(output)
        raise UserError(f"got log-probs in {dtype} that are not finite; expected a dtype with room; try --dtype bf16")
    same = (reloaded.argmax(-1) == expected.argmax(-1)).float().mean().item()
    return {
        "wrote": str(output),
        "base": name,
        "dtype": str(again.dtype).removeprefix("torch."),
        "architecture": type(again).__name__,
        "chat_template": bool(getattr(tokenizer, "chat_template", None)),
        "largest_weight_change": changed,
        "update_kept": kept,
        "merge": {"largest_logprob_difference": difference, "allowed": limit},
        "saved": {"largest_logprob_difference": (reloaded - expected).abs().max().item(), "same_top_token": same},
        "tokens_compared": len(expected),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help, allow_abbrev=False)
    parser.add_argument("adapter", metavar="ADAPTER", help="folder with adapter_config.json")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="new folder for the merged model")
    parser.add_argument("--base", metavar="M", help="folder or hub id (default: what the adapter's config names)")
    parser.add_argument("--dtype", choices=[*DTYPES], help="dtype of the weights (default: what the base declares)")
    args = parse_flags(parser, argv)
    quiet_environment()
    try:
        report = merged_folder(args)
    except UserError as error:
        say(f"error: {error}")
        return error.code
    tell(json.dumps(report, indent=1))
    kept = report["update_kept"]
    if not report["largest_weight_change"]:
        say("warning: the adapter changes no weight (its B is 0): was it trained?")
    elif kept < 0.5:
        say(f"warning: rounding to {report['dtype']} keeps {kept:.0%} of the update; try --dtype fp32")
    return int(not (report["largest_weight_change"] and kept))


if __name__ == "__main__":
    sys.exit(main())
