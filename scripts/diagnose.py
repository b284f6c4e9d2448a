#!/usr/bin/env python3
# Built from src/programs/diagnose/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["pyarrow", "pyyaml"]
# ///
"""Read the logs of an RL run and name the root cause: evidence, what it explains, what to change, source.

A RUN_OR_FILE is one of

    ppo_train.py, grpo_train.py   metrics.jsonl, or the run's folder (config.json and samples.jsonl are read too)
    templates/*.py and copies     the same, with settings.json instead of config.json
    TRL                           trainer_state.json, a checkpoint or output folder, or console output ({'loss': …})
    verl                          console output (step:N - key:value - …), or the JSONL of trainer.logger=file
    ms-swift                      its output folder: logging.jsonl, args.json, completions.jsonl
    others                        lines of name=value, CSV (wandb's export), tables, notebooks; --columns names others

The verdict is learned, did not learn, broken (since a step), too short, no verdict (50 steps or more, with the reason)
or unreadable. It names at most two causes, each with the figures that it explains, and a command that tells two apart.
Settings, samples and the reward's source are read from files beside the log, or from those that flags name. Only
--rescore runs code of the run, in the sandbox. The last lines say what was read and what else would decide.

Trends compare the medians of the first and the last quarter of the steps (3 to 20 of them). They count only if noise of
the same scatter and persistence would rarely produce them, even in the best of many stretches: each cause appears in
at most 1 % of simulated logs of flat noise (benchmarks/false_alarms.py). A cause names the source of its thresholds, or
says "our heuristic". benchmarks/README.md says how often the cause is right.

    groups without signal, at pass rate p and group size G: p^G + (1 - p)^G, for independent draws of a 0/1 reward

Deliberately left out: curves (scripts/report.py draws them), trackers' own files (wandb, tensorboard), crashes and
out-of-memory errors, which references/troubleshooting.md covers, and judging whether a final score is a good one.

    python scripts/diagnose.py runs/first
    python scripts/diagnose.py verl_console.log --group_size 8 --json
    python scripts/diagnose.py runs/first --reward my_rewards.py:correct --data train.jsonl
    python scripts/diagnose.py mine.log --columns reward=avg_return kl=kl_to_ref step=it

Exit codes: 0 learned, 1 a cause, broken or did not learn, 2 unreadable, 3 too short or no verdict; of several
runs 2, then 1, then 3.
"""

# Contents
#        97-131  messages      Errors that a user can fix, each with an exit code; messages on stderr; the layout of …
#       134-137  bundle        Paths of this bundle and of its embedded model, data and rewards; loading its other …
#       140-336  dialect       Names of settings (ours, the one-page trainers', TRL's, OpenRLHF's), and replacements …
#       339-359  settings      Settings: dataclasses whose fields are flags and YAML keys, and the checks that all …
#       362-385  user scripts  A user's Python script or notebook, read from its source
#       388-462  extracts      Extract from a Python file what some of its names need
#       465-484  paired tests  Intervals, paired tests, pass@k
#       487-596  dialects      Names of metrics and settings in our trainers, TRL, verl and others
#       599-905  logged run    A logged run: its metrics, settings and samples, and statistics of their trends
#      908-1235  run settings  Read settings from YAML, JSON, shell or Python, and map ours, TRL's, verl's and …
#     1238-1444  sample texts  Logged completions: score, gold answer, stated answer and what it was paid
#     1447-1751  log reading   Rows of a log as metrics: names, numbers, steps and runs of any dialect, under common …
#     1754-1849  own names     Names of self-written loops: what the words of a name say of a log's column or a sample's
#     1852-2082  sample files  Read files of samples: samples.jsonl, TRL's completion tables, verl's rollout dumps, …
#     2085-2385  logs          Reading a log file of any form in one pass: JSON lines, CSV, consoles, lines of …
#     2388-2640  run folder    Load a run: its log, with the settings, samples, data and rewards that lie beside it …
#     2643-2695  cause         Causes: the evidence that they need, the signs that they explain, and the change that …
#     2698-2872  machinery     Machinery at fault: overflow, restarts, a sampler unlike the trainer, stale weights, …
#     2875-3130  groups        Groups that teach nothing: near-greedy, cut, too hard, too easy, too sparse, without …
#     3133-3439  rewards       Faulty rewards: another answer format, wrong gold answers, constant, inverted, blind …
#     3442-3659  updates       Faulty updates: too large, without effect, held back by the KL, or led by a useless …
#     3662-3954  outcomes      Wrong outcomes: one reward part bought or lost, memorised prompts, a held-out set of …
#     3957-4125  ranking       Find a run's signs, rank the causes that explain them, and give a verdict
#     4128-4260  rescoring     --rescore: run the reward in the sandbox on gold, nonsense and logged samples, these …
#     4263-4358  command       The command line: diagnose runs one after the other, and print verdicts as text or JSON

import argparse
import ast
import bisect
import contextlib
import csv
import difflib
import functools
import io
import itertools
import json
import math
import mmap
import operator
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
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


# ----------------------------------------------------------------- paired tests (src/parts/evaluating/paired_tests.py)

Z95, Z_POWER = 1.959963984540054, 0.8416212335729143  # normal quantiles of 97.5 % and of 80 % power


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927); exact ends for 0 and n successes."""
    z, p = Z95, successes / n
    shrink = 1 + z * z / n
    middle = (p + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def share_gain(before: tuple[float, float], after: tuple[float, float]) -> tuple[float, float, float]:
    """(Gain, low, high) between two independent (share, count), 95 % interval by Newcombe 1998, method 10."""
    (low_a, high_a), (low_b, high_b) = (wilson_interval(p * n, n) for p, n in (before, after))
    below, above = (after[0] - low_b, high_a - before[0]), (high_b - after[0], before[0] - low_a)
    gain = after[0] - before[0]
    return gain, gain - math.hypot(*below), gain + math.hypot(*above)


# ---------------------------------------------------------------------------- dialects (src/parts/reading/dialects.py)

# One metric a line: common name | our name | TRL's | earlier TRL's (GRPO until 0.16, PPO until 1.12, online DPO) and
# others', without what OUTER of log_reading.py drops | verl's. If a log has several names of one metric, the first
# listed wins. Sums over tokens are not read.
METRICS = """
score | reward/mean | reward | objective/scores | critic/score/mean critic/rewards/mean
score | | | rollout_scores/mean raw_reward task_reward reward/total train_reward reward/avg_raw_reward | reward/overall
score | | | reward_score scores ep_rew rm |
score_std | reward/std | reward_std | rollout_scores/std reward/std |
score_max | | | | critic/score/max
score_min | | | | critic/score/min
advantage_max | | | | critic/advantages/max
advantage_min | | | | critic/advantages/min
zero_std | reward/zero_std_frac | frac_reward_zero_std | |
kl | kl/ref | kl | kl_div policy_kl kl_loss | actor/kl_loss actor/reward_kl_penalty critic/kl
kl_step | kl/approx | | approxkl approx_kl approx_policy_kl ppo_kl | actor/ppo_kl
kl_weight | kl/coef | | | actor/kl_coef actor/reward_kl_penalty_coeff
loss | policy/loss | loss | loss/policy policy_loss pg_loss actor_loss pg | actor/pg_loss
clip_frac | policy/clip_frac | clip_ratio/region_mean | clip_ratio clipfrac clip_frac clip_fraction | actor/pg_clipfrac
clip_frac | | cispo_clip_ratio | ppo_clip_ratio pg_clipfrac |
entropy | policy/entropy | entropy | policy_entropy entropy_loss | actor/entropy actor/entropy_loss
ratio_max | policy/ratio_max | | |
value_loss | value/loss | | loss/value critic_loss value_loss vf_loss cri | critic/vf_loss
explained_variance | value/explained_variance | | explained_variance explained_var | critic/vf_explained_var
length | rollout/length_mean | completions/mean_length | completion_length response_length | response_length/mean
length | | | generation_length response_lengths response_len seq_len seq_length sequence_length sequence_lengths |
length | | | responses_len val/sequence_lengths generate/avg_num_tokens gen_tokens_per_sample glen ep_len ep_lens |
length_max | | | | response_length/max
truncated | rollout/truncated_frac | completions/clipped_ratio | truncated truncated_ratio | response_length/clip_ratio
truncated | | | no_eos_ratios truncate_ratio truncation_rate is_truncated |
gap_mean | | sampling/sampling_logp_difference/mean | train_rollout_logprob_abs_diff |
gap_max | rollout/logprob_gap_max | sampling/sampling_logp_difference/max | |
turns | rollout/turns_mean | | |
limit | rollout/limit_frac | | |
tool_calls | tool/calls_mean | tools/call_frequency | |
tool_failures | tool/failure_frac | tools/failure_frequency | |
tool_seconds | tool/seconds | | |
mismatch_kl | mismatch/kl | | generation_kl_error gen_kl_error mismatch_kl | rollout_corr/k3_kl
weight_mean | mismatch/weight_mean | sampling/importance_sampling_ratio/mean | | rollout_corr/rollout_is_mean
probs_correlation | | | | training/rollout_actor_probs_pearson_corr
lr | optim/lr | learning_rate | lr actor_lr policy_lr act_lr lr-pg_0 learning_rate_group_0 | actor/lr
grad_norm | optim/grad_norm | grad_norm | raw_grad_norm | actor/grad_norm
updates | optim/updates | | |
skipped | optim/skipped_updates | | |
time_step | time/step | step_time | | timing_s/step
gpu_memory | memory/gpu_peak_gib | | | perf/max_memory_allocated_gb
memory | memory/process_gib | | |
held_out | eval/accuracy | eval_reward | eval_objective/scores |
held_out_rows | eval/rows | | |
"""
ROWS = [[names.split() for names in line.split("|")] for line in METRICS.strip().splitlines()]
OURS, TRL, EARLIER, VERL = ({key: name for (name,), *names in ROWS for key in names[i]} for i in range(4))
NAMES = {"ours": OURS, "verl": VERL, "trl": TRL | EARLIER}
PATTERNS = {  # common name -> pattern of further names; group 1 of a part is the reward function's name
    "ours": {
        "held_out": r"eval/accuracy",
        "part": r"reward/(?!mean$|std$|zero_std_frac$)(.+)",
        "held_out_part": r"eval/(?!accuracy(?:_low|_high)?$|rows|trained_rows|score$|length)(.+)",
    },
    "trl": {
        "held_out": r"(?:eval_)?eval_.+_pass1|(?:eval|val|valid|validation|test|held_out)[_/](?!rewards/)(?:.+/)?"
        r"(?:(?:avg|mean)_)?(?:acc|accuracy|score|reward|reward/total|avg@\d+|pass@1)",
        "part": r"(?:rewards/(?!chosen|rejected|margins|accuracies)|(?=(?:train_)?acc(?:uracy)?$))"
        r"(.+?)(?:/mean)?(?<!/std)",
        "held_out_part": r"eval_rewards/(.+?)(?:/mean)?(?<!/std)",
    },
    "verl": {
        "held_out": r"val-core/.+/(?:acc|reward)/mean@\d+|val/test_score/.+|val/reward_score",
        "part": r"(?:gdpo(?=/.+/mean)|reward)/(?!overall)(.+?)(?:/mean)?",
    },
}
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
ADVISED = ("lr", "group_size", "temperature", "max_length", "kl", "epochs")
OUR_WORDS, TRL_WORDS, VERL_WORDS = ({name: SETTINGS[name].split()[i] for name in ADVISED} for i in range(3))
WORDS = {  # trainer -> {common name: the name that a remedy uses for the setting}
    "ppo_train": {name: f"--{word}" for name, word in OUR_WORDS.items()},
    "one_page": {name: f"--{word.removeprefix('ppo_')}" for name, word in OUR_WORDS.items()},
    "grpo_train": {name: f"--{word}" for name, word in TRL_WORDS.items()},
    "trl": TRL_WORDS,
    "verl": VERL_WORDS,
    "other": OUR_WORDS,
}


# ------------------------------------------------------------------------ logged run (src/parts/reading/logged_run.py)

TREND_STEPS = 10  # no trend is judged from fewer steps
ALARM = 0.006  # share of flat series that show a trend by chance; benchmarks/false_alarms.py measures it
SOLVED = 0.95
GAIN = 0.03  # least gain of the held-out metric that counts: the standard error of 256 answers at rate 0.5
EARLY = 5  # first steps, in which the policy is still close to the initial one


def as_number(value) -> float | None:
    """A JSON or console value as a float; None if it is not a number."""
    try:
        return None if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def is_finite(value) -> bool:
    """Whether a JSON or console value is a finite number below 1e18, whose square still fits into float32."""
    number = as_number(value)
    return number is not None and abs(number) < 1e18


def window(count: int) -> int:
    """Number of steps in the first and in the last stretch of a run of `count` steps: a quarter, from 3 to 20."""
    return max(3, min(count // 4, 20))


def ends(values: list[float]) -> tuple[float, float]:
    """Medians of the first and of the last stretch; NaN without values."""
    k = window(len(values))
    return (statistics.median(values[:k]), statistics.median(values[-k:])) if values else (math.nan, math.nan)


def persistence(values: list[float]) -> float:
    """Lag-1 autocorrelation of the noise, clamped to [0, 0.5]; estimated from step differences, so trends cancel."""
    changes = [b - a for a, b in itertools.pairwise(values)]
    mean = statistics.fmean(changes)
    changes = [change - mean for change in changes]
    square = sum(change * change for change in changes)
    if square <= 1e-18 * max(map(abs, values)) ** 2 * len(values):  # a straight line
        return 0.0
    # the differences of AR(1) noise have the lag-1 autocorrelation (rho - 1) / 2
    return min(0.5, max(0.0, 1 + 2 * sum(a * b for a, b in itertools.pairwise(changes)) / square))


def noise(values: list[float]) -> float:
    """Standard deviation of a step's noise, such that a median of k steps has the standard error 1.25 noise / sqrt k.

    It is estimated from the distances between neighbouring steps: by their median or their upper quartile, whichever
    gives more, as a coarse score often has the distance 0; by their mean if both are 0 (rare right answers).
    Autocorrelated noise counts sqrt(1 + rho) / (1 - rho) times as much as independent noise.
    """
    distances = sorted(abs(b - a) for a, b in itertools.pairwise(values))
    quartile = distances[3 * (len(distances) - 1) // 4]
    scatter = max(1.4826 * statistics.median(distances), 0.8693 * quartile) or 1.2533 * statistics.fmean(distances)
    rho = persistence(values)
    return scatter / math.sqrt(2) * math.sqrt(1 + rho) / (1 - rho)


def errors_of_chance(count: int, choices: float = 1) -> float:
    """How many standard errors a flat series exceeds with probability ALARM, for the best of several `choices`.

    This is the two-sided quantile of Student's t with `count` degrees of freedom, by the first terms of Hill's series.
    """
    z = statistics.NormalDist().inv_cdf(1 - ALARM / 2 / choices)
    return z + (z**3 + z) / (4 * count) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * count**2)


def trend(values: list[float]) -> int:
    """1 if the last stretch lies above the first beyond chance, -1 if below, else 0; 0 for fewer than 10 steps."""
    if len(values) < TREND_STEPS:
        return 0
    first, last = ends(values)
    chance = errors_of_chance(len(values)) * 1.25 * noise(values) * math.sqrt(2 / window(len(values)))
    return 0 if abs(last - first) <= max(chance, 1e-9) else 1 if last > first else -1


def is_flat(values: list[float]) -> bool:
    """Whether 20 or more steps show no rise: no upward trend, and end medians at most 0.02 apart."""
    first, last = ends(values)
    return len(values) >= 2 * TREND_STEPS and trend(values) <= 0 and last - first <= 0.02


def forecast(p: float, group: int) -> float:
    """Expected share of groups whose 0/1 rewards are all equal, at pass rate p."""
    return p**group + (1 - p) ** group


def is_format(name: str) -> bool:
    """Whether a reward function's name says that it judges the format."""
    return bool(re.search(r"format|xml|tag|json|layout|structure|think", name, re.IGNORECASE))


def names_correctness(name: str) -> bool:
    """Whether a reward function's name says that it judges the answer."""
    return bool(re.search(r"correct|acc|answer|exact|math|solv", name, re.IGNORECASE)) and not is_format(name)


@dataclass(frozen=True)
class Fact:
    """One piece of evidence: its text, and the metric, step and ids of the samples that show it."""

    text: str
    figure: str = ""
    step: int | None = None
    samples: tuple[str, ...] = ()


@dataclass
class LoggedRun:
    """A run's metrics as {name: {step: value}}: `columns` by the log's own names, `series` by common names.

    `config` has the run's own settings, `settings` the same under common names. `reward_source` is its reward's code.
    """

    path: str
    format: str
    trainer: str
    columns: dict[str, dict[int, float]] = field(default_factory=dict)
    bad: list[tuple[str, int, float]] = field(default_factory=list)  # (name, step, value) of values that are not finite
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # common name -> the log's own name
    settings: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    samples: list[dict] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    settings_file: str = ""
    reward_source: str = ""
    reward_name: str = ""
    reward_file: str = "reward"
    texts: list = field(default_factory=list)  # the samples as causes read them
    rows: dict[str, dict] = field(default_factory=dict)  # prompt of a sample -> its row in the data
    trials: dict[str, str] = field(default_factory=dict)  # cause -> evidence for it that --rescore found
    golds: dict[str, str] = field(default_factory=dict)  # prompt -> gold answer, in the order of the training data
    head: list[dict] = field(default_factory=list)  # the log's first rows
    guessed: dict[str, str] = field(default_factory=dict)  # figure or text -> the column that its words point to

    @property
    def dialect(self) -> str:
        """The set of metric names that the log uses: ours, trl or verl."""
        return self.trainer if self.trainer in ("trl", "verl") else "ours"

    def knows_settings(self) -> bool:
        """Whether training settings are known: a settings file or a learning rate; trainer_state.json has neither."""
        return bool(self.settings_file or self.settings.get("lr") or self.config.get("lr") is not None)

    def points(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a series, by step."""
        return sorted(self.series.get(name, {}).items())

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.points(name)]

    def ends(self, name: str) -> tuple[float, float]:
        return ends(self.values(name))

    def trend(self, name: str) -> int:
        return trend(self.values(name))

    def early(self, name: str, steps: int = EARLY) -> list[float]:
        return self.values(name)[:steps]

    def correlation(self, one: str, other: str = "") -> float:
        """Correlation of two series, or of one with the step; 0 for fewer than 10 common steps or a constant."""
        left = self.series.get(one, {})
        right = self.series.get(other, {}) if other else {step: step for step in left}
        steps = left.keys() & right.keys()
        columns = [[series[step] for step in steps] for series in (left, right)]
        varied = len(steps) >= TREND_STEPS and all(max(values) > min(values) for values in columns)
        return statistics.correlation(*columns) if varied else 0.0

    def name(self, series: str) -> str:
        return self.names.get(series, series)

    def fact(self, series: str, text: str, step: int | None = None) -> Fact:
        """A fact about a series under its name in the log, at `step`, by default the series' last step."""
        return Fact(text, self.name(series), max(self.series.get(series, {}), default=None) if step is None else step)

    def steps(self) -> list[int]:
        names = [name for name in self.series if not name.startswith("held_out")]
        return sorted({step for name in names for step in self.series[name]})

    def number(self, setting: str) -> float | None:
        """A setting as a number; None if it is unknown, a text or not finite."""
        value = self.settings.get(setting)
        return as_number(value) if not isinstance(value, str) and is_finite(value) else None

    def batch(self, count: int = 1) -> int:
        """Number of completions in `count` steps; 32 a step if the settings have no batch size."""
        size = self.number("batch") or 0
        return int(size if size >= 1 else 32) * count

    def parts(self) -> dict[str, list[float]]:
        """Mean rewards over the steps, by reward function, in the order of the log."""
        return {name[5:]: self.values(name) for name in self.series if name.startswith("part:")}

    def part_spreads(self) -> list[float]:
        """TRL's standard deviations of each reward over the whole batch; `score_std` has those within groups.

        float32's rounding of equal scores counts as 0.
        """
        names = [key for key in self.columns if re.fullmatch(r"(train/)?rewards/.+/std", key)]
        spreads = [value for name in names for _, value in sorted(self.columns[name].items())]
        return [spread if spread > 1e-6 else 0.0 for spread in spreads]

    def answer_part(self) -> tuple[str, list[float]]:
        """(name, means) of the part named after correctness, or the first part not for format, or the whole score."""
        parts = self.parts()
        names = [*filter(names_correctness, parts), *(name for name in parts if not is_format(name))]
        if names:
            return names[0], parts[names[0]]
        scores, lowest = self.values("score"), min(self.values("score_min"), default=0.0)
        is_signed = lowest == -1 and not parts  # -1 or 1, as in DAPO
        return "score", [(score + 1) / 2 for score in scores] if is_signed else scores

    def answer_series(self) -> str:
        """Common name of the correctness reward's series; the score's if the log has no parts."""
        return f"part:{self.answer_part()[0]}" if self.parts() else "score"

    def spreads(self) -> list[float]:
        """How much the scores of a step differ: their standard deviation, else from the lowest to the highest."""
        pairs = zip(self.values("score_max"), self.values("score_min"), strict=False)
        return self.values("score_std") or [high - low for high, low in pairs]

    def is_constant(self) -> bool:
        """Whether all completions scored alike in four of five steps; without spreads, whether all means are 0."""
        scores, spreads = self.values("score"), self.spreads()
        if not spreads:
            others = ("score", "grad_norm", "zero_std", "score_max", "score_min")
            return len(scores) >= TREND_STEPS and not any(any(self.values(name)) for name in others)
        alike = sum(spread <= 1e-6 for spread in spreads) >= max(3, 0.8 * len(spreads))
        means = [score for score, spread in zip(scores, spreads, strict=False) if spread <= 1e-6]
        same = max(means, default=0.0) - min(means, default=0.0) <= 1e-6  # TRL's score_std is within groups only
        return alike and same and not any(self.part_spreads())

    def is_solved(self) -> bool:
        """Whether the task is solved: the held-out metric reached 0.95, or without one correctness rose to 0.95."""
        held_out, part = self.values("held_out"), self.answer_part()[1]
        if held_out and max(held_out) <= 1:
            return max(held_out) >= SOLVED and held_out[-1] >= SOLVED - 0.05
        return len(part) >= 3 and max(part) <= 1 and ends(part)[1] >= SOLVED and min(part) < SOLVED

    def held_out_gain(self) -> tuple[float, float, float] | None:
        """(gain, low, high): the held-out gain from first to last evaluation and its 95 % interval.

        None with fewer than two evaluations. For shares the interval takes both as independent samples of `eval/rows`
        answers (64 if unknown); this is too wide, as the rows are the same. For other metrics it is twice the scatter.
        """
        points, rows = self.points("held_out"), self.series.get("held_out_rows", {})
        if len(points) < 2:
            return None
        (start, before), (end, after) = points[0], points[-1]
        if 0 <= min(before, after) <= max(before, after) <= 1:
            count = rows.get(end) or rows.get(start) or 64
            return share_gain((before, count), (after, count))
        gain = after - before
        scatter = max([GAIN, *(abs(b - a) for (_, a), (_, b) in itertools.pairwise(points[1:]))])
        return gain, gain - 2 * scatter, gain + 2 * scatter

    def held_out_peak(self) -> int | None:
        """The step of the best held-out share if the last one surely lies below it, else None."""
        points, rows = self.points("held_out"), max(self.values("held_out_rows"), default=64)
        step, best = max(points, key=lambda point: point[1], default=(0, -1))
        is_share = points and 0 <= min(self.values("held_out")) <= best <= 1
        return step if is_share and share_gain((best, rows), (points[-1][1], rows))[2] < 0 else None

    def gained(self) -> bool:
        """Whether the held-out metric gained over GAIN and kept 3/4 of its best; without one, if correctness rose."""
        gain, held_out = self.held_out_gain(), self.values("held_out")
        if gain:
            return gain[0] > GAIN and max(held_out) - held_out[-1] < max(2 * GAIN, gain[0] / 3)
        return trend(self.answer_part()[1]) > 0

    def learns(self) -> bool:
        return self.gained() and self.trend("score") > 0

    def onset(self, name: str) -> int:
        """The first step at which a series with a trend is half way between its ends; without one, the last step."""
        points, way, middle = self.points(name), self.trend(name), sum(self.ends(name)) / 2
        return next((step for step, value in points if way and way * (value - middle) >= 0), points[-1][0])

    def collapse(self) -> tuple[float, float, int] | None:
        """(best stretch's median, last one's, step at which half was lost) if the score lost over half, else None."""
        scores, points, count = self.values("score"), self.points("score"), len(self.values("score"))
        if count < TREND_STEPS:
            return None
        last, floor = ends(scores)[1], min(0, *scores)
        width = min(window(count), max(5, window(count) // 2))
        stretches = [statistics.median(scores[i : i + width]) for i in range(count - width + 1)]
        best, steps, choices = max(stretches), width, len(stretches) / 2  # / 2: the test is one-sided
        if max(scores[width:]) - floor < (scores[0] - floor) / 2:  # the first updates destroyed the policy for good
            best, steps, choices = scores[0], 1, 1
        chance = errors_of_chance(count, choices) * 1.25 * noise(scores) * math.sqrt(1 / steps + 1 / window(count))
        spread = self.ends("score_std")[0] if self.values("score_std") else 0.0
        if best - last <= max(0.5 * (best - floor), spread / 2, chance, 1e-6):
            return None
        shares = (best, self.batch(steps)), (last, self.batch(window(count)))
        if floor == 0 and max(scores) <= 1 and share_gain(*shares)[2] >= 0:  # a few lucky completions
            return None
        if count < 2 * TREND_STEPS and last > 0.1 * best:
            return None
        above = (i for i, middle in enumerate(stretches) if middle >= (best + last) / 2)
        half = points[max(above, default=-(width // 2)) + width // 2 + 1][0]
        gain = self.held_out_gain()  # a falling score is fine if prompts got harder and the held-out metric rises
        better = gain and gain[1] > 0 and self.gained() and max(self.series["held_out"]) > half
        return None if better else (best, last, half)


# -------------------------------------------------------------------- run settings (src/parts/reading/run_settings.py)

GROUPED = ("grpo", "rloo", "grpo_passk", "gpg", "rloo_vectorized", "dapo", "dr_grpo", "gspo", "cispo", "opo")
CONFIG_CALL = re.compile(r"(?<!SFT)(?<!Lora)(?<!Generation)(?:Config|Arguments|Args|Trainer)$")
SAMPLES_CALL = re.compile(r"(SamplingParams|GenerationConfig|\.generate)$")
EVALUATES = re.compile(r"(?!.*train)(.*_)?(ev|val|(eval|test|valid|judge|infer)[a-z]*)(_.*)?", re.IGNORECASE)
OTHER_PARTS = re.compile(r"(^|\.)(val|eval|test|valid|validation|judge|grader|ref)[._]")
# settings whose product is the number of updates per batch, under all names that a one-page trainer may give them
REPEATS = ("minibatches", "epochs", "ppo_epochs", "updates", "iterations", "num_iterations")
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


def printed_config(lines: list[str]) -> dict:
    """verl's settings by dotted names, from the lines in which it prints them; {} while they are incomplete."""
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    plain[0] = plain[0][plain[0].find("{'actor_rollout_ref': ") :]
    plain = [re.sub(r"^.*?\(\w+ pid=\d+(, ip=[\d.]+)?\) ?", "", line) for line in plain]
    try:  # lines that other processes print in between begin differently
        return flat_config(ast.literal_eval("".join(line for line in plain if line[:1] in " {")))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}


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


def verl_settings(flat: dict) -> dict:
    """Map verl's settings by dotted names to common names, with the KL weight in use and the updates per batch."""
    sizes = {f"{ACTOR}.ppo_epochs": 1} | flat  # a shell variable that is not expanded gives None
    names = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs")
    batch, mini, epochs = (as_number(sizes.get(name)) for name in names)
    bypass = flat.get("algorithm.rollout_correction.bypass_mode")
    common = common_settings(flat)
    if any(key.startswith(ACTOR) for key in flat):  # both KL terms are off by default; each has its own weight
        in_loss, in_reward = flat.get(f"{ACTOR}.use_kl_loss"), flat.get("algorithm.use_kl_in_reward")
        weight = f"{ACTOR}.kl_loss_coef" if in_loss else "algorithm.kl_ctrl.kl_coef" if in_reward else ""
        common["kl"] = flat.get(weight, 0.001 if weight else 0.0)
    return common | {
        "updates": None if bypass or not batch or not mini or not epochs else epochs * max(1, batch // mini),
        "grouped": flat.get("algorithm.adv_estimator") in GROUPED,
    }


def our_settings(config: dict, is_page: bool = False) -> tuple[str, dict]:
    """(trainer or "", common settings) of a config.json, or with `is_page` of a one-page trainer's settings.json."""
    common = common_settings(config)
    if not common.get("lr"):  # 0 means: the default for the model's size
        common.pop("lr", None)
    if "num_generations" in config:
        per_rollout = config.get("steps_per_generation", 0)
        one = config.get("num_iterations", 1) == 1 and not config.get("generation_batch_size")
        one = one and per_rollout in (0, config.get("gradient_accumulation_steps", 0))
        return "grpo_train", common | {"updates": 1 if one else None, "grouped": True}
    if not is_page and "ppo_epochs" not in config:
        return "", common
    common["updates"] = math.prod(as_number(config.get(name)) or 1 for name in REPEATS)
    if is_page:
        return "one_page", common | {"grouped": "group_size" in config}
    advantage = config.get("advantage") or config.get("algorithm") or "gae"
    grouped = advantage not in ("gae", "ppo", "remax", "reinforce_pp")
    return "ppo_train", common | {
        # a distillation may measure rewards without training on them
        "grouped": bool(config.get("reward_coef")) if "teacher" in config else grouped,
        "exact": config.get("precision") == "fp32" and config.get("rollout_engine") == "hf",
        "tools": bool(config.get("tool_format")),  # the trainer refuses a format if the environment has no tools
    }


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


def add_settings(run: LoggedRun, folder: Path | None, given: str) -> None:
    """Add the settings of the file `given` by --settings; without one, and if none are known, those beside the log."""
    path, flat = Path(given), {}
    if given:
        need(path.exists(), f"got --settings {given}, which does not exist; expected a file")
        flat = read_settings(path)
        need(
            common_settings(flat),
            f"got --settings {given} without a setting that is known; expected YAML, JSON, a shell script or a Python "
            "script with names such as temperature, learning_rate, num_generations",
        )
    elif folder and not run.knows_settings():
        known = run.points("lr"), run.remarks
        path, flat = settings_of(folder, *known) or settings_beside(folder.parent, *known) or (path, flat)
    if flat:
        is_verl = any(key.startswith(("actor_rollout_ref.", "data.")) for key in flat)
        common = verl_settings(flat) if is_verl else common_settings(flat)
        run.settings |= {name: value for name, value in common.items() if value is not None}
        run.config = flat | run.config
        run.settings_file = path.name
        if run.trainer == "trl" and "num_generations" in flat:
            run.settings.setdefault("grouped", True)


# -------------------------------------------------------------------- sample texts (src/parts/reading/sample_texts.py)

GOLD_NAMES = (
    *("gold", "answer", "ground truth", "ground_truth", "solution", "target", "label", "reference_answer"),
    *("final_answer", "reference", "expected", "gts", "response", "output"),
)
# marked answers in completions: the first group that matches is the mark or its tag, the last one the answer
MARKED = re.compile(
    r"<(\w+)>([^<>]*)</\1>|\\(boxed)\s*\{((?:[^{}]|\{[^{}]*\})*)\}|(####)\s*([^\n]*)"
    r"|(?i:\b(answer(?: is|[:=]))\s*((?:(?!\\boxed|</?\w+>|####|\banswer(?: is|[:=])|[.!?](?:\s|$))[^\n])*))"
)
IN_SOURCE = re.compile(r"<\\?/?(\w+)>|(boxed)|(####)|(?i:\b(answer(?: is|:)))")  # marks in a reward's source
COMPLETIONS = {"completions", "completion", "solution_str", "response", "responses"}  # reward functions' argument
NUMBER = re.compile(r"(?<![\w.])[-−]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?![\w])")


@dataclass(frozen=True)
class Text:
    """One logged completion; `right` is None if the gold answer is unknown."""

    id: str
    step: int
    kind: str
    prompt: str
    completion: str
    score: float | None
    gold: str | None = None
    right: bool | None = None
    finished: bool | None = None
    parts: dict = field(default_factory=dict)
    unscored: bool = False  # every reward function returned None

    @property
    def pay(self) -> float | None:
        """The reward for correctness: by the part named so, else the first; the score if there is at most one part."""
        if len(self.parts) < 2:
            return self.score
        return self.parts[next(filter(names_correctness, self.parts), next(iter(self.parts)))]

    def has_gold(self, gold: str | None = None) -> bool:
        """Whether the completion contains its gold answer (or `gold`); if the prompt does too, it must state it."""
        gold = gold or self.gold
        is_inside = bool(gold) and holds(self.completion, gold)
        return is_inside and (not holds(self.prompt, gold) or stated_answer(self.completion, gold) == gold)


def plain_text(value) -> str:
    """A text, or the content of the last message; other values as JSON."""
    if isinstance(value, list) and value:
        last = value[-1]
        value = last.get("content") if isinstance(last, dict) else last
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def plain_math(text: str) -> str:
    r"""The text with LaTeX's \text{…} unwrapped and \frac{a}{b} as a/b."""
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", text)
    return re.sub(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}", r"\1/\2", text)


def simplest(answer: str) -> str:
    """Normalise an answer: numbers and fractions to decimal text, others to lower case without outer marks."""
    answer = plain_math(answer).strip().strip("$ *`()").rstrip(".").replace("−", "-")
    bare = re.sub(r"[,\s$]", "", answer)
    if ratio := re.fullmatch(r"(-?\d{1,15})/0*([1-9]\d{0,14})", bare):
        return f"{int(ratio[1]) / int(ratio[2]):.10g}"
    if re.fullmatch(r"-?\d+(\.\d+)?", bare):
        return f"{float(bare):.10g}" if "." in bare else str(int(bare)) if len(bare) < 400 else bare
    return answer.casefold()


def gold_of(row: dict) -> str | None:
    """The gold answer of a row, from the first of GOLD_NAMES that it has; of a worked solution the marked answer."""
    columns = {str(key).casefold(): value for key, value in row.items()}
    columns |= {str(key).casefold(): value for key, value in (row.get("columns") or {}).items()}
    if isinstance(columns.get("reward_model"), dict):
        columns |= columns["reward_model"]
    for name in GOLD_NAMES:
        value = columns.get(name)
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and str(value).strip():
            marked = marked_answers(str(value))
            gold = simplest(marked[-1][1] if marked else str(value))
            numbers = NUMBER.findall(gold)
            # a number with a unit counts as the number
            return simplest(numbers[0]) if len(numbers) == 1 and len(gold.split()) <= 3 else gold
    return None


def marked_answers(text: str) -> list[tuple[str, str]]:
    """(mark, answer) of every marked answer in a text; the mark of `<tag>…</tag>` is the tag's name."""
    matches = [[part for part in groups if part] for groups in MARKED.findall(text)]
    return [(groups[0].casefold(), groups[1].strip()) for groups in matches if len(groups) == 2]


def stated_answer(text: str, gold: str) -> str:
    """The last answer in a text: marked, else the last number if the gold is a number, else the last line."""
    marked = [answer for mark, answer in marked_answers(text) if mark not in ("think", "reasoning")]
    last = plain_math(marked[-1]) if marked else text.strip().rpartition("\n")[2]
    if not NUMBER.fullmatch(gold):  # a single marked answer that contains the gold counts as the gold
        return gold if len(marked) == 1 < len(gold) and holds(last, gold) else simplest(last)
    numbers = NUMBER.findall(last if marked else text)
    return simplest(numbers[-1] if numbers else last)


def holds(text: str, gold: str) -> bool:
    """Whether a text contains the gold answer as a separate word or number."""
    if re.fullmatch(r"-?\d[\d.]*", gold):
        numbers = NUMBER.findall(text) + re.findall(r"-?\d+", text)
        return any(simplest(number) == gold for number in numbers)
    return re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text.casefold()) is not None


def sample_texts(samples: list[dict], golds: dict[str, str]) -> list[Text]:
    """Samples with a completion as `Text`s, in the order of the log; `golds` maps prompts to gold answers."""
    texts = []
    for i, row in enumerate(samples):
        if not isinstance(row.get("completion"), (str, list)):
            continue
        completion, prompt = plain_text(row["completion"]), plain_text(row.get("prompt"))
        gold = gold_of({k: v for k, v in row.items() if k not in ("prompt", "completion")}) or golds.get(prompt)
        right = None if gold is None else stated_answer(completion, gold) == gold
        score, rewards = row.get("score"), row.get("rewards")
        score = float(score) if is_finite(score) else None
        parts = {k: float(v) for k, v in rewards.items() if is_finite(v)} if isinstance(rewards, dict) else {}
        step = int(float(row["step"])) if is_finite(row.get("step")) else 0
        finished = row.get("finished") if isinstance(row.get("finished"), bool) else None
        kind = str(row.get("kind", "train"))
        none = isinstance(rewards, dict) and bool(rewards) and all(v is None for v in rewards.values())
        texts.append(Text(f"{step}.{i}", step, kind, prompt, completion, score, gold, right, finished, parts, none))
    return texts


def some_of(texts: list[Text]) -> list[Text]:
    """At most 2,000 texts, evenly spaced: enough for a mean or a correlation."""
    return texts[:: 1 + len(texts) // 2000]


def grouped(texts: list[Text], key: Callable) -> list[list[Text]]:
    """Groups of texts with equal keys, in the order of the log."""
    groups: dict = {}
    for text in texts:
        groups.setdefault(key(text), []).append(text)
    return list(groups.values())


def source_marks(source: str) -> set[str]:
    """The answer marks that a reward's source, or a prompt, mentions."""
    return {part.casefold() for groups in IN_SOURCE.findall(source) for part in groups if part}


def repeats(text: str) -> float:
    """Share of repeated 6-character pieces in a text's first 1,000 characters; 0 for fewer than 30 characters."""
    text = text[:1000]
    pieces = [text[i : i + 6] for i in range(len(text) - 5)]
    return 1 - len(set(pieces)) / len(pieces) if len(text) >= 30 else 0.0


FEATURES = {  # what a reward may pay instead of the answer -> its amount in a completion
    "length": len,
    "tags": lambda text: len(re.findall(r"</?\w+>", text)),
    "digits": lambda text: sum(map(str.isdigit, text)),
    "repetition": repeats,
    "answers tried": lambda text: len(marked_answers(text)),
    "text after the answer": lambda text: len(re.split(r"</answer>|\\boxed\{[^{}]*\}|####\s*\S+", text)[-1].strip()),
}


def payment_by_feature(texts: list[Text]) -> dict[str, float]:
    """Correlation of score and each feature, both centred among equally right completions; 0 if one does not vary."""
    scored, paid = some_of([t for t in texts if t.score is not None]), {}

    def within(values: list[float]) -> list[float]:
        pairs = list(zip(values, (t.right for t in scored), strict=True))
        means = {kind: statistics.fmean(v for v, right in pairs if right is kind) for kind in {t.right for t in scored}}
        return [v - means[right] for v, right in pairs]

    scores = within([t.score for t in scored])
    for name, measure in FEATURES.items():
        amounts = within([float(measure(t.completion)) for t in scored])
        varied = len(scored) > 2 and max(amounts) > min(amounts) and max(scores) > min(scores)
        paid[name] = statistics.correlation(amounts, scores) if varied else 0.0
    return paid


def early_texts(texts: list[Text]) -> list[Text]:
    """The samples of the run's first third, before the policy drifts; all samples if these are fewer than 24."""
    steps = sorted({t.step for t in texts})
    early = [t for t in texts if t.step <= steps[len(steps) // 3]] if steps else []
    return early if len(early) >= 24 else texts


def scores_by_answer(texts: list[Text]) -> tuple[list[float], list[float]]:
    """The rewards for correctness of right and of wrong completions, of those with a known gold answer."""
    return tuple([t.pay for t in texts if t.right is kind and t.pay is not None] for kind in (True, False))


def right_gain(texts: list[Text]) -> tuple[float, float, float] | None:
    """(gain, low, high) of the share of right completions, between held-out evaluations, else thirds of training."""
    held_out, train = ([t for t in texts if t.kind == kind and t.right is not None] for kind in ("eval", "train"))
    graded = held_out if len({t.step for t in held_out}) > 1 else train
    steps = sorted({t.step for t in graded})
    third = 1 if graded is held_out else max(1, len(steps) // 3)
    shares = [[t for t in graded if t.step in part] for part in (steps[:third], steps[-third:])]
    if len(steps) < 2 or min(map(len, shares)) < 8:
        return None
    draws = [len({(t.step, t.prompt) for t in share}) for share in shares]  # a prompt's completions are alike
    return share_gain(*((statistics.fmean(t.right for t in x), n) for x, n in zip(shares, draws, strict=True)))


# ---------------------------------------------------------------------- log reading (src/parts/reading/log_reading.py)

SHARES = ("truncated", "clip_frac", "zero_std")
KEPT = ("step", "length", "truncated", "zero_std", "kl", "entropy", "loss", "clip_frac", "lr", "grad_norm")
# name of a figure in --columns -> its common name
FIGURES = {"reward": "score", "reward_std": "score_std", "accuracy": "held_out"} | {name: name for name in KEPT}
# names of the step, the best first: a tracker's _step counts its calls
STEP_NAMES = (
    *("global_step", "global_step/max_steps", "training_step", "current_steps", "step", "iteration", "iter", "steps"),
    "_step",
)
EVALUATION = "eval|evaluation|val|valid|validation|test|held[-_ ]?out"
OUTER = re.compile(  # prefixes, words and suffixes that do not change which figure a name has
    "^(?:(?:train|trainer|training|rollout|rollout_info|metrics|env|all|ppo|policy|optim|losses|ppo_actor|grpo_actor|"
    "update)/)*(?:(?:avg|mean|average)_)?|[/_](?:mean|avg)$"
)
RUN_KEYS, SPLIT_KEYS = {"run_id", "run", "run_name"}, {"split", "phase", "mode", "stage", "kind", "partition"}
TAG_KEYS = ("key", "tag", "metric", "name")  # of tables with one value a row, such as MLflow's
ODD_KEYS = {"value"} | RUN_KEYS | SPLIT_KEYS  # a row without them is as it was logged
# a metric keeps about MOST_STEPS points or more; the first FIRST_STEPS all stay; names are judged by HEAD_ROWS rows
MOST_STEPS, FIRST_STEPS, HEAD_ROWS = 5000, 100, 200


@functools.lru_cache(1 << 14)  # a log repeats its names
def short_name(name: str) -> str:
    """A column's name without wandb's run prefix ("run - train/reward") and a notebook's spaces ("rewards / f")."""
    return name.strip().rpartition(" - ")[2].replace(" / ", "/")


def listed_name(key: str, dialect: str) -> str:
    """The name in NAMES that a metric has, as it is or without what OUTER drops ("train/avg_reward"); else ""."""
    names = [key, key.lower()]  # consoles capitalise: Reward
    names += [OUTER.sub("", name) for name in names] if dialect == "trl" else []
    return next((name for name in names if name in NAMES[dialect]), "")


@functools.lru_cache(1 << 14)
def common_name(key: str, dialect: str) -> str | None:
    """The common name of a metric, None if it has none. Trackers log TRL's metrics as train/NAME and eval/NAME."""
    if name := listed_name(key, dialect):
        return NAMES[dialect][name]
    key = re.sub("^eval/", "eval_", OUTER.sub("", key)) if dialect == "trl" else key
    for name, pattern in PATTERNS[dialect].items():
        if match := re.fullmatch(pattern, key):
            return ":".join((name, *match.groups()))
    return None


@functools.lru_cache(1 << 14)
def is_of_training(key: str) -> bool:
    """Whether in some dialect a name is not one of held-out figures."""
    return not all((common_name(key, dialect) or "held_out").startswith("held_out") for dialect in NAMES)


@functools.lru_cache(1 << 14)
def step_rank(key: str) -> int:
    """The place of a name in STEP_NAMES; their number if it names no step."""
    name = re.sub("^(train|trainer|training|rollout)/", "", key.lower())
    return STEP_NAMES.index(name) if name in STEP_NAMES else len(STEP_NAMES)


def names_step(key: str) -> bool:
    return step_rank(key) < len(STEP_NAMES)


@functools.lru_cache(1 << 14)
def is_rounded(key: str, text: str) -> bool:
    """Whether a learning rate or KL was printed as 0.000, as earlier verl does, so that its value is unknown."""
    is_short = re.fullmatch(r"-?0\.0{2,5}", text.strip())
    return bool(is_short) and any(common_name(key, dialect) in ("lr", "kl", "kl_step") for dialect in NAMES)


def number_of(value) -> float | None:
    """A JSON value or a cell as a number: 45% is 0.45, 1,234.5 is 1234.5, 0,5 is 0.5; None for other texts."""
    if not isinstance(value, str):
        return as_number(value)
    try:
        return float(value)
    except ValueError:
        text = value.strip()
    if text.endswith("%"):
        number = as_number(text[:-1])
        return None if number is None else number / 100
    groups = re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", text)
    return as_number(text.replace(",", "" if groups else "."))


def whole_number(value) -> int | None:
    """A step as a number; of ms-swift's "5/150" the first one; None for other texts and for fractions."""
    number = as_number(value.partition("/")[0] if isinstance(value, str) else value)
    return int(number) if number is not None and abs(number) < 1e18 and number % 1 == 0 else None


class Table:
    """The metrics of a log's rows as {name: {step: value}}; a repeated step keeps the later value.

    Keeps memory flat: once a metric has more than 2 x MOST_STEPS points, every second one after the first FIRST_STEPS
    is dropped. Rows that begin anew are another run: only the last one of three rows or more is kept.
    """

    def __init__(self, columns: dict[str, str]):
        self.kept = {}, [], []  # of the run before: its metrics, values that are not finite, restarts
        self.rows = self.nested = self.counted = self.runs = 0  # counted: training rows without a step
        self.step_name = short_name(columns["step"]) if "step" in columns else ""
        self.step_names = {self.step_name: -1}  # and those that rows have -> their rank; of equal ones the first wins
        self.given = {short_name(column) for figure, column in columns.items() if figure != "step"}
        self.run_names = {}  # the runs that rows name
        self.head = []  # the first rows
        self.begin()

    def begin(self) -> None:
        """Begin another run: later rows belong to it."""
        self.columns, self.bad, self.restarts = {}, [], []
        self.runs += 1
        self.step = self.before = self.offset = 0  # of the last row, of the last training row; added to steps
        self.taken = self.first = self.every = 0  # training rows so far; step of the first, from it to the next
        self.epoch, self.epochs = -math.inf, {}  # of the last training row; {epoch: its last step} of counted rows

    def add(self, row: dict) -> None:
        """Add a row, or those of a history by columns. A training row without a step counts as the next step."""
        row = self.plain_row(row)
        if {*map(type, row.values())} == {list}:
            for cells in zip(*row.values(), strict=False):
                self.add(dict(zip(row, cells, strict=True)))
            return
        self.rows += 1
        if self.rows <= HEAD_ROWS:
            self.head.append(row)
        step = self.step = self.step_of(row)
        for key, value in row.items():
            number = number_of(value)
            if number is None or (number == 0 and type(value) is str and is_rounded(key, value)):
                continue
            if abs(number) < 1e18:
                points = self.columns.setdefault(key, {})
                points[step] = number
                if len(points) > 2 * MOST_STEPS:
                    kept = list(points.items())
                    self.columns[key] = dict(kept[:FIRST_STEPS] + kept[FIRST_STEPS::2])
            else:
                self.bad.append((key, step, number))

    def is_figure(self, key: str, value) -> bool:
        """Whether a cell is a figure or a step, and no time; what only has a message is no row."""
        known = names_step(key) or key in self.given or key == self.step_name
        is_fraction = isinstance(value, float) and value < 1e9
        return known or is_fraction or any(common_name(key, dialect) for dialect in NAMES)

    def plain_row(self, row: dict) -> dict:
        """A row as {metric: value}: flat, cells `key` and `value` joined, with eval_ before an evaluation's names."""
        if isinstance(row.get("data"), dict):  # verl's file logger, whose step is beside it
            self.nested += "step" in row
            row = {"step": row.get("step"), **row["data"]}
        if dict in map(type, row.values()):
            row = {key.replace(".", "/"): value for key, value in flat_config(row).items()}
        if ODD_KEYS.isdisjoint(row):
            return row
        self.run_names |= {str(row[key]): None for key in RUN_KEYS & row.keys()}
        if "value" in row and (name := next((row[key] for key in TAG_KEYS if isinstance(row.get(key), str)), "")):
            row = {key: value for key, value in row.items() if names_step(key)} | {name: row["value"]}
        if any(re.fullmatch(EVALUATION, str(row[key]), re.IGNORECASE) for key in SPLIT_KEYS & row.keys()):
            row = {key if names_step(key) else f"eval_{key}": value for key, value in row.items()}
        return row

    def step_of(self, row: dict) -> int:
        """The step that a row names, else the next one for a training row and the current one for an evaluation row."""
        ranks = self.step_names
        ranks |= {name: step_rank(name) for name in row if name not in ranks and names_step(name)}
        numbers = (whole_number(row[name]) for name in sorted(ranks, key=ranks.get) if name in row)
        step = next((number for number in numbers if number is not None), None)
        filled = (name for name, value in row.items() if value not in (None, ""))
        if not any(name in self.given or is_of_training(name) for name in filled):
            return self.step if step is None else step + self.offset
        epoch = as_number(row.get("epoch", row.get("Epoch")))
        epoch = self.epoch if epoch is None else epoch
        if step is None:
            step = self.next_step(epoch)
        elif epoch > self.epoch and step + self.offset < self.before:  # steps begin anew in each epoch
            self.offset = self.before + (step == 0)
        self.epoch = epoch
        return self.follow(step + self.offset) if len(row) > 2 else step + self.offset

    def next_step(self, epoch: float) -> int:
        """The step of a training row without one: the next; if the epoch fell, the next after the smaller epochs."""
        self.counted += 1
        step = self.step + 1
        if epoch < self.epoch and epoch % 1:  # whole epochs may be passes over one batch
            self.epochs = {before: last for before, last in self.epochs.items() if before < epoch}
            step = 1 + max(self.epochs.values(), default=0)
        self.epochs[epoch] = step
        return step

    def follow(self, step: int) -> int:
        """The step of a training row. Notes another run if steps begin anew, a restart if they fall less."""
        if step <= self.first < self.before and self.taken >= 10 and step <= max(self.every, 1):
            epoch, self.kept = self.epoch, (self.columns, self.bad, self.restarts)
            self.begin()
            if self.counted:
                step = self.next_step(epoch)
        elif 0 < step < self.before:
            self.restarts.append(step)
        self.every = self.every or (step - self.first if self.taken else 0)
        self.before, self.first, self.taken = step, self.first if self.taken else step, self.taken + 1
        return step

    def drop_gaps(self) -> list[str]:
        """Drop NaN before numbers, since it stands for empty cells in a CSV; returns the names of these metrics."""
        last = {key: max(points) for key, points in self.columns.items()}
        gaps = {key: None for key, step, value in self.bad if math.isnan(value) and step < last.get(key, step)}
        self.bad = [entry for entry in self.bad if entry[0] not in gaps or not math.isnan(entry[2])]
        return [*gaps]


def run_of_rows(path: Path, table: Table, columns: dict[str, str], kind: str = "log entries") -> LoggedRun:
    """A run from a table; its metric names show whether ours, verl or TRL wrote it. --columns names other metrics."""
    if table.runs > 1 and table.taken < 3:  # stray rows, such as those of a summary
        table.columns, table.bad, table.restarts = table.kept
    keys = table.columns.keys() | {key for key, _, _ in table.bad}
    known = {name: [*filter(None, (common_name(key, name) for key in keys))] for name in NAMES}
    dialect = "verl" if table.nested else max(known, key=lambda name: ("score" in known[name], len(known[name])))
    trainer = "trl"
    if columns or not any(known.values()):
        kind = "named columns" if columns else kind
    elif dialect == "verl":
        kind, trainer = f"verl {kind}", "verl"
    elif dialect == "ours" and kind == "console":  # our trainers write metrics.jsonl
        trainer = "other"
    elif dialect == "ours":
        kind, trainer = "metrics.jsonl", "one_page"
        if "optim/lr" in keys:
            trainer = "grpo_train" if "time/step" in keys else "ppo_train"
    return run_of(path, kind, trainer, table, columns)


def other_quantity(name: str, points: dict[int, float], columns) -> str:
    """Why a metric's figures are not what its common name means; "" if they may be."""
    if name in SHARES and max(points.values()) > 1.001:
        return "exceeds 1, so it is no share,"
    is_sum = name == "kl" and any("rlhf_reward" in column for column in columns)  # torchtune's
    return "beside rlhf_reward is a sum over tokens" if is_sum else ""


def run_of(path: Path | str, kind: str, trainer: str, table: Table, columns: dict[str, str]) -> LoggedRun:
    """A run with a table's metrics under common names. Names given by --columns take precedence."""
    run = LoggedRun(str(path), kind, trainer, table.columns, table.bad, head=table.head)
    run.settings["restarts"] = sorted({*table.restarts})
    runs = ", ".join([*table.run_names][:3])
    need(len(table.run_names) < 2, f"got {path} with the runs {runs}; expected one run; try an export of one run")
    if table.runs > 1:
        run.remarks.append(f"the log has {table.runs} runs, as its steps begin anew; the last with 3 steps is judged")
    if any(len(points) > MOST_STEPS for points in table.columns.values()):
        run.remarks.append(f"the log is long: only part of its {table.rows} entries is judged, the first ones all")
    names = {short_name(column): figure for figure, column in columns.items()}
    for column, figure in names.items():
        near = difflib.get_close_matches(column, run.columns, n=1)
        need(
            column in run.columns,
            f"got --columns {figure}={column}, which {path} does not have; expected one of its columns: "
            f"{', '.join(sorted(run.columns)[:20])}" + (f"; try {figure}={near[0]}" if near else ""),
        )
    names = {column: FIGURES.get(figure, f"part:{column}") for column, figure in names.items() if figure != "step"}
    places = {name: place for place, name in enumerate(NAMES[run.dialect])}

    def place(key: str) -> tuple:
        """Listed names come first, then those that OUTER shortens, both in the order of the list."""
        listed = listed_name(key, run.dialect)
        return not listed, listed not in (key, key.removeprefix("train/")), places.get(listed, 0)

    sources: list[dict[int, float]] = []  # verl logs one held-out metric for each data source; their mean is taken
    for key in sorted(run.columns, key=place):
        name, points = names.get(key) or common_name(key, run.dialect), run.columns[key]
        if not name or not points or (key not in names and name in names.values()):
            continue
        if other := other_quantity(name, points, run.columns):
            run.remarks.append(f"{key} {other} and was not read")
            continue
        if name == "entropy" and max(points.values()) <= 0:  # the term of the loss
            points = {step: -value for step, value in points.items()}
        if name == "held_out" and run.dialect == "verl":
            sources.append(points)
        elif name in run.series:
            continue  # the first name of a metric wins
        run.names.setdefault(name, key)
        run.series[name] = points | run.series.get(name, {})
    low, spread = run.series.get("advantage_min", {}), run.series.get("score_std", {})
    spread = spread or {step: high - low[step] for step, high in run.points("advantage_max") if step in low}
    if "zero_std" not in run.series and spread and max(spread.values()) <= 1e-6:  # no group differed at any step
        run.names["zero_std"] = run.name("score_std" if "score_std" in run.series else "advantage_max")
        run.series["zero_std"] = dict.fromkeys(spread, 1.0)
    if sources:
        by_step = {step: [points[step] for points in sources if step in points] for step in run.series["held_out"]}
        run.series["held_out"] = {step: sum(values) / len(values) for step, values in by_step.items()}
    return run


def drop_padded(run: LoggedRun) -> None:
    """Set verl's truncated share to 0 at steps below the limit: its V1 trainer pads to the batch's longest response."""
    longest = run.series.get("length_max", {})
    limit = run.settings.get("max_length")
    if not limit and longest:  # the largest length is taken for the limit if half of the steps reach it
        top = max(longest.values())
        limit = top if sum(value == top for value in longest.values()) * 2 >= max(len(longest), 4) else math.inf
    for step, value in longest.items():
        if limit and value < limit and step in run.series.get("truncated", {}):
            run.series["truncated"][step] = 0.0


# -------------------------------------------------------------------------- own names (src/parts/reading/own_names.py)

KINDS = {  # kind of a word -> words that self-written loops use, in the singular
    "step": "step iteration iter it update upd round cycle episode t schritt runde",
    "epoch": "epoch ep epoche",
    "score": "score reward rew r return ret point pay paid payoff utility belohnung lohn punkte ertrag",
    "right": "right correct acc accuracy solved solve pass exact em success richtig korrekt genauigkeit",
    "held": "dev val valid validation test held heldout holdout eval evaluation unseen prüf pruef",
    "length": "length len word token tok char länge laenge wörter woerter wort zeichen",
    **{"spread": "std sd stdev", "sum": "sum total cum cumulative seen summe", "kl": "kl", "lr": "lr"},
    **{"entropy": "entropy", "truncated": "truncated"},
    **{"gold": "gold want wanted expected truth target", "completion": "completion response resp output reply antwort"},
    "prompt": "prompt question ask query problem task input instruction frage aufgabe q",
    "": "mean avg average train training out set rate frac share pct percent the of mittel mittlere quote",
    "other": "min max best loss err error coef weight scale limit budget baseline time sec second ms hour context id "
    "idx index row item norm clip ratio per count n num value code run seed experiment exp trial variant lauf",
}
KIND = {word: kind for kind, words in KINDS.items() for word in words.split()}
FITS = {  # figure of --columns or text of a sample -> kinds of its words; of several, the first that a file has counts
    **{"step": ("step", "epoch"), "reward": ("score", "score sum"), "reward_std": ("score spread",)},
    **{"accuracy": ("held right", "held score", "held"), "length": ("length", "completion length")},
    **{name: (name,) for name in ("kl", "lr", "entropy", "truncated", "prompt", "completion")},
    "gold": ("gold", "gold right", "gold completion"),
}
OF_RL = {"kl", "entropy", "length", "truncated", "reward_std"}  # no table of matches or of boosting has them


def words_of(name: str) -> list[str]:
    """The words of a name in camelCase, snake_case or with other signs; two known words may be written as one."""
    words, name = [], re.sub(r"(?<=[^\W_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    for word in re.findall(r"[^\W\d_]+", name.lower()):
        word = word if word in KIND else word.removesuffix("s")
        halves = [(word[:i], word[i:]) for i in range(2, len(word) - 1) if {word[:i], word[i:]} <= KIND.keys()]
        words += halves[0] if halves and word not in KIND else (word,)
    return words


def best_fits(names: list[str]) -> dict[str, list[str]]:
    """{figure or text: the columns that fit it best by their words}; several fit equally."""
    fits: dict[str, list] = {}
    for name in names:
        words = words_of(name)
        kinds, unknown = {KIND[word] for word in words if word in KIND} - {""}, sum(word not in KIND for word in words)
        common = common_name("_".join(words), "trl") or "held_out"  # of a known name in camelCase
        for figure in (figure for figure, known in FIGURES.items() if known == common != "held_out"):
            fits.setdefault(figure, []).append((-1, unknown, name))
        for figure, forms in FITS.items():
            fits.setdefault(figure, []).extend((i, unknown, name) for i, x in enumerate(forms) if kinds == {*x.split()})
    return {figure: [x[2] for x in found if x[:2] == min(found)[:2]] for figure, found in fits.items() if found}


def own_columns(run: LoggedRun) -> dict[str, list[str]]:
    """{figure of --columns: columns that fit equally} of a log without a known score or step.

    {} if it is no log of training. Rounds, points and lengths are those of games, too: the step must grow, and another
    figure stand beside them.
    """
    known = [name for name in run.columns if names_step(name)]
    if known and any(name == "score" or name.startswith("part:") for name in run.series):
        return {}
    taken = {figure for figure, name in FIGURES.items() if name in run.series}
    fits = {figure: x for figure, x in best_fits([*run.columns]).items() if figure in FIGURES.keys() - taken}
    steps = known or fits.get("step", [])
    cells = [whole_number(row[name]) for name in steps[:1] for row in run.head if row.get(name) not in (None, "")]
    grows = None not in cells and 2 * sum(a < b for a, b in itertools.pairwise(cells)) > len(cells)
    figures = {*fits, *run.series} - {"step", "length"}
    if not grows or not figures & {"reward", "score"} or not figures - {"reward", "score"}:
        return {}
    scores = {word for name in fits.get("reward", ()) for word in words_of(name)}
    of_matches = "point" in scores and ["win"] in map(words_of, run.columns)
    of_boosting = {"train", "score"} <= scores and min(run.values("lr"), default=0.0) >= 0.05
    if (of_matches or of_boosting) and not {*fits, *run.series} & OF_RL:
        return {}
    return {figure: names for figure, names in fits.items() if figure != "step" or not known}


def sample_columns(rows: list[dict]) -> dict[str, str]:
    """{name in samples.jsonl: column}, the only other text as completion or prompt; {} for known or too few names."""
    names = [name for name in rows[0] if name not in ODD_KEYS] if rows else []
    texts = [name for name in names if any(isinstance(row.get(name), (str, list)) for row in rows)]
    is_text = {"prompt": True, "completion": True, "reward": False, "step": False}
    fits = {kind: fitting[0] for kind, fitting in best_fits(names).items() if len(fitting) == 1}
    fits = {kind: x for kind, x in fits.items() if is_text.get(kind, x in texts) == (x in texts)}
    rest = [name for name in texts if name not in fits.values()]
    missing = [kind for kind in ("completion", "prompt") if kind not in fits]
    fits |= {missing[0]: rest[0]} if missing and len(rest) == 1 else {}
    if {"completion", "score"} <= {*names} or not {"completion", "reward"} <= fits.keys():
        return {}
    columns = {"score" if kind == "reward" else kind: column for kind, column in fits.items()}
    return {kind: columns[kind] for kind in ("completion", "prompt", "score", "step", "gold") if kind in columns}


def meanings(columns: dict[str, str]) -> str:
    """What columns were read as, in words."""
    others = {kind.replace("accuracy", "held-out accuracy"): name for kind, name in columns.items() if name != kind}
    return "read " + ", ".join(f"{name} as {kind}" for kind, name in others.items())


# -------------------------------------------------------------------- sample files (src/parts/reading/sample_files.py)

HELD_OUT = re.compile(r"(?<![a-z])(val|eval|held|test)", re.IGNORECASE)  # in names of files and folders
SAMPLED = re.compile("samples|completions|rollouts|generations", re.IGNORECASE)  # file names begin so
VERL_KEYS = ("input", "output", "score", "step")  # in every line of a dump; further keys come from the reward function
TRL_KEYS = ("step", "prompt", "completion", "advantage", "advantages")  # further columns: rewards and their logs
TABLES = (".csv", ".tsv")
SAMPLE_NAMES = {  # name in samples.jsonl -> names elsewhere
    "completion": ("completion", "completions", "response", "output", "generation", "generated_text", "text"),
    "prompt": ("prompt", "prompts", "question", "input", "problem", "query"),
    "score": ("score", "reward", "rewards", "total_reward", "return"),
    "step": ("step", "global_step", "train_step"),
}


def json_object(text: str | bytes) -> dict | None:
    """Parse a JSON object; None if the text is not one."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def json_lines(path: Path) -> tuple[list[dict], list[int]]:
    """The objects in a JSONL file, and the numbers of the lines that are not objects."""
    rows, bad = [], []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            row = json_object(line.decode("utf-8", errors="replace"))
            if row is not None:
                rows += unfolded({sys.intern(key): value for key, value in row.items()})
            elif line.strip():
                bad.append(number)
    return rows, bad


def unfolded(row: dict) -> list[dict]:
    """Split a row whose completion is a list of texts, as ms-swift's row of a step, into one row each; else [row]."""
    texts = row.get("completion")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        return [row]
    lists = {key for key, cells in row.items() if isinstance(cells, list) and len(cells) == len(texts)}
    return [{key: cells[i] if key in lists else cells for key, cells in row.items()} for i in range(len(texts))]


def columns_of(path: Path) -> set[str]:
    """The column names of a table, from its first 64 K characters; empty if the file is not a table."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        with contextlib.suppress(OSError, ValueError):
            return {*parquet.read_schema(path).names}
    if path.suffix not in (".jsonl", ".json", *TABLES) or not path.is_file():
        return set()
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = file.read(1 << 16)
    header = head.partition("\n")[0]
    names = header.split(separator_of(header)) if path.suffix in TABLES else re.findall(r'"([\w ]+)"\s*:', head)
    return {name.strip(' "').lower() for name in names}


def separator_of(header: str) -> str:
    """The cell separator of a CSV file, by its first line."""
    return max((",", ";", "\t"), key=header.count)


def is_samples(path: Path, needed: tuple[str, ...] = ("completion", "prompt", "score")) -> bool:
    """Whether a file has the needed columns; completions.jsonl (ms-swift's) needs no score, as the log has it."""
    columns = columns_of(path)
    return all(columns & {*SAMPLE_NAMES[name]} for name in needed[: 2 if path.stem == "completions" else None])


def samples_beside(path: Path, run: LoggedRun, alone: bool, given: str = "") -> list[dict]:
    """The rows of the file `given`, of samples.jsonl beside a log, or of the only samples in its folder `alone`."""
    if given:
        return own_samples(Path(given), run)
    usual, others = path.with_name("samples.jsonl"), sorted(path.parent.iterdir() if alone else ())
    others = [p for p in others if p != path and columns_of(p) and not HELD_OUT.search(p.stem)]
    tables = [p for p in others if is_samples(p)]
    files = [usual] if usual.is_file() else [p for p in tables if SAMPLED.match(p.stem)]
    if run.guessed and not files:
        files = [p for p in others if "step" in sample_columns(rows_of_samples(p, LoggedRun("", "", "")))]
    if tables and not files:
        run.remarks.append(f"{tables[0].name} beside it may not be this run's samples; if it is, try --samples FILE")
    if len(files) > 1:
        names = ", ".join(other.name for other in files[:4])
        run.remarks.append(f"{names} beside it all have samples, so none was read; try --samples FILE")
    return own_samples(files[0], run, run) if len(files) == 1 else []


def own_samples(path: Path, run: LoggedRun, remarks: LoggedRun | None = None) -> list[dict]:
    """The rows of a file of samples; if their names are unknown, columns count by the words of their names."""
    rows = rows_of_samples(path, remarks)
    if columns := sample_columns(rows) if run.guessed or not remarks else {}:
        run.guessed["completion"] = columns["completion"]
        run.remarks.append(f"of {path.name}, {meanings(columns)}")
    return [row | {kind: row.get(column) for kind, column in columns.items()} for row in rows]


def verl_row(row: dict) -> dict:
    """Convert a line of verl's dump to a row of samples.jsonl."""
    parts = {key: value for key, value in row.items() if key not in (*VERL_KEYS, "gts", "uid", "request_id")}
    rewards = {key: value for key, value in parts.items() if type(value) in (int, float)}
    sample = {"step": row["step"], "kind": "train", "prompt": row["input"], "completion": row["output"]}
    sample |= {"score": row["score"], "rewards": rewards}
    sample |= {key: value for key, value in parts.items() if key not in rewards and key not in sample}
    return sample | ({} if row.get("gts") is None else {"ground truth": row["gts"]})


def verl_samples(folder: Path, run: LoggedRun) -> list[dict]:
    """The rows of verl's dumps STEP.jsonl, in the folders that the settings name or else in those beside the log."""
    named = (("trainer.rollout_data_dir", "train"), ("trainer.validation_data_dir", "eval"))
    places = [(Path(place), kind) for key, kind in named if (place := run.config.get(key)) and Path(place).is_dir()]
    others = sorted(path for path in folder.iterdir() if path.is_dir())
    folders = places or [(path, "eval" if HELD_OUT.search(path.name) else "train") for path in others]
    files = [(path, kind) for place, kind in folders for path in place.glob("*.jsonl") if path.stem.isdecimal()]
    files.sort(key=lambda pair: (int(pair[0].stem), pair[1], str(pair[0])))
    rows = [row | {"kind": kind} for path, kind in files for row in rows_of_samples(path, run)]
    samples = [row for row in rows if "completion" in row]
    if len(rows) > len(samples):
        run.remarks.append(f"verl's dumps of samples: {len(rows) - len(samples)} lines are not samples; left out")
    return samples


def turns_of(completion) -> tuple[str, list]:
    """(text, messages): what the assistant wrote, and all messages if there are several or one calls a tool."""
    if not isinstance(completion, list):
        return completion, []
    texts = [m.get("content") for m in completion if isinstance(m, dict) and m.get("role", "assistant") == "assistant"]
    text = "\n".join(content if isinstance(content, str) else json.dumps(content) for content in texts if content)
    return text, completion if len(completion) > 1 or any(m.get("tool_calls") for m in completion) else []


def trl_row(row: dict, weights: dict[str, float] | None) -> dict:
    """Convert a row of TRL's table to a row of samples.jsonl; without reward weights its score is None."""
    text, turns = turns_of(row.get("completion"))
    parts = {key: value for key, value in row.items() if key not in TRL_KEYS}
    rewards = {key: value for key, value in parts.items() if value is None or type(value) in (int, float)}
    applies = {key: x for key, x in rewards.items() if is_finite(x) and key in (weights or {})}
    score = sum(weights[key] * value for key, value in applies.items()) if applies else None
    sample = {"step": number_or_text(row["step"]), "kind": "train", "prompt": row["prompt"], "completion": text}
    sample |= {"score": score, "rewards": rewards, "advantage": row.get("advantage")}
    if turns:
        prompt = row["prompt"] if isinstance(row["prompt"], list) else [{"role": "user", "content": row["prompt"]}]
        sample["messages"] = [*prompt, *turns]
    return sample | {key: value for key, value in parts.items() if key not in rewards and key not in sample}


def reward_weights(run: LoggedRun) -> dict[str, float] | None:
    """TRL's reward weights, by the settings or else 1 each; None if the weighted means do not give the logged score."""
    means = {m[1]: key for key in run.columns if (m := re.fullmatch(r"rewards/(.+)/mean", key))}
    given, totals = run.config.get("reward_weights"), run.columns.get("reward", {})
    weights = given if isinstance(given, list) and len(given) == len(means) else [1.0] * len(means)
    for step in totals if means else ():
        parts = [run.columns[key].get(step, math.nan) for key in means.values()]
        total = sum(weight * part for weight, part in zip(weights, parts, strict=True))
        if abs(total - totals[step]) > 1e-3 * max(1.0, abs(totals[step])):
            return None
    return dict(zip(means, weights, strict=True)) if means and totals else None


def trl_samples(folder: Path, run: LoggedRun) -> list[dict]:
    """The rows that TRL writes to the folder completions/ with log_completions."""
    paths = sorted((folder / "completions").glob("completions_*.parquet"))
    rows = [row for path in paths for row in rows_of_samples(path, run)]
    if reward_weights(run) is None and any(len(row.get("rewards", ())) > 1 for row in rows):
        run.remarks.append("settings do not state the rewards' weights, so samples lack scores; try --settings FILE")
    return rows


def rows_of_samples(path: Path, run: LoggedRun | None = None) -> list[dict]:
    """The rows of a JSONL, JSON, CSV or parquet file, as rows of samples.jsonl.

    A file that cannot be read raises UserError; with `run`, it adds a remark and gives no rows.
    """
    rows, problem = [], "which has no rows"
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            rows = parquet.read_table(path).to_pylist()
        elif path.suffix in TABLES:
            text = path.read_text(encoding="utf-8-sig", errors="replace")
            separator = separator_of(text.partition("\n")[0])
            rows = [*csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)]
            rows = [{key: cell_value(key, cell, separator) for key, cell in row.items()} for row in rows]
        elif path.read_bytes()[:1] == b"[":
            rows = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        else:
            rows, bad = json_lines(path)
            if bad and run:
                run.remarks.append(f"{path.name} beside it: {len(bad)} lines are not JSON (line {bad[0]}); left out")
            elif len(rows) == 1 and {"columns", "data"} <= rows[0].keys():  # wandb's table
                rows = [dict(zip(rows[0]["columns"], cells, strict=False)) for cells in rows[0]["data"]]
            elif bad:
                problem, rows = f"whose line {bad[0]} is not JSON", []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        problem = str(error)
    if not rows or not all(isinstance(row, dict) for row in rows):
        need(run, f"got {path}, {problem}; expected JSONL, JSON, CSV or parquet with rows")
        run.remarks.append(f"{path.name} beside it has no rows that can be read")
        return []
    weights = reward_weights(run) if run else None
    return [one for row in rows for one in unfolded(renamed_row(row, weights or {}))]


def cell_value(key: str, cell: str, separator: str):
    """A cell as a number or text: texts of prompts and completions stay as they are; 0,5 between semicolons is 0.5."""
    if str(key).lower() in (*SAMPLE_NAMES["prompt"], *SAMPLE_NAMES["completion"]):
        return cell
    is_decimal = separator != "," and re.fullmatch(r"-?\d+,\d+", str(cell))
    return number_or_text(cell.replace(",", ".") if is_decimal else cell)


def renamed_row(row: dict, weights: dict[str, float]) -> dict:
    """Convert a row of verl's, TRL's or others' samples to a row of samples.jsonl, as far as its names are known."""
    if {*VERL_KEYS} <= row.keys():
        return verl_row(row)
    is_trl = {*TRL_KEYS[:3]} < row.keys() and row.keys() & {*TRL_KEYS[3:], *weights}
    if is_trl and not row.keys() & {*SAMPLE_NAMES["score"]}:
        rewards = [key for key, value in row.items() if key not in TRL_KEYS and type(value) in (int, float)]
        return trl_row(row, {rewards[0]: 1.0} if len(rewards) == 1 else weights)
    keys = {str(key).lower(): key for key in row}
    sources = {name: next((keys[key] for key in names if key in keys), None) for name, names in SAMPLE_NAMES.items()}
    taken = {name: row[key] for name, key in sources.items() if key is not None}
    if isinstance(taken.get("score"), dict):
        taken["rewards"] = taken.pop("score")
    if isinstance(taken.get("score"), bool):
        taken["score"] = float(taken["score"])
    return {k: v for k, v in row.items() if k not in sources.values()} | taken


# ------------------------------------------------------------------------------------ logs (src/parts/reading/logs.py)

TRL_STATE = re.compile(rb'"(max_steps|num_train_epochs|train_batch_size|logging_steps|eval_steps)": ([\d.]+)')
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WRAPPED = re.compile(r"\b(?:np\.\w+|tensor|[Aa]rray)\(([^(),]*)[^()]*\)")
PAIR = re.compile(
    r"([A-Za-z_][\w/.@-]*+)['\"]?\s*+[=:]\s*+(?=[-+.\d]|nan|inf)([-+]?\d+(?:,\d+)+(?:\.\d+)?|[-+\w.]+%?)", re.IGNORECASE
)
# above its figures
HEADING = re.compile(r"\b(?:step|iter(?:ation)?|rollout|perf)[ :#[]+(\d+)\b(?!\.\d)", re.IGNORECASE)
EPOCH = re.compile(r"\bepoch[ :=#[]+(\d+)\b(?!\.\d)", re.IGNORECASE)
SPACED = re.compile(  # • Avg Reward: 1 of NeMo-RL, | Grad. Norm: 1 of prime-rl
    r"(?:^|(?<=[•|] ))((?:[a-z]\w*\.? )+[a-z]\w*\.?):(?= *[-+.\d])", re.IGNORECASE
)
WORDED = re.compile(r"(?<![\w=:.])([A-Za-z_][\w/@]*):? +(?=[-+]?(?:\d|\.\d|nan\b|inf\b))")  # step 3: loss 0.5, reward 1
EVALUATED = re.compile(  # [eval], eval: or eval at step 3 before a line's figures; "eval " before one of them
    rf"(?:^|[\[(|,;: ])(?:{EVALUATION})(?:[\])]|\.? $|:(?= )|(?= (?:\||at\b|step\b|iter)))", re.IGNORECASE
)
CUT = re.compile(r"\{'(?:loss|reward|num_tokens|eval_\w+)': [^{}]*$")  # a printed dict that continues on the next line
CELL_PAIR = re.compile(r"(?<=\w) *[ │] *(?=(?:[-+.\deE]+|nan|inf) *([|│]|$))")  # | kl 1 |; │ kl │ 1 │ of AReaL
SECTION = re.compile(r"(?:\(\w+ pid=[^)]*\) )?( *)([\w-]+):(?: ([^ ]+))?")  # a line of EasyR1's YAML console output
ODD = re.compile(r"(?<=: )(-?inf|nan|None|True|False)(?=[,}])")  # Python literals in a printed dict that JSON lacks
BAND = re.compile("__M(IN|AX)$")  # wandb exports NAME__MIN and NAME__MAX beside each NAME
ERROR = re.compile(r"(?:\(\w+ pid=[^)]*\) )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)")  # ends a traceback
CELL = re.compile(r"[-+]?[.\d]+(e[-+]?\d+)?")
VERL_LINE = re.compile(r"\bstep:(\d+) - (.+)")
DICT = re.compile(r"\{'[^{}\n]*\}")


class Reader:
    """Collects the metrics, settings and errors of a log line by line, each kind of line in a `Table` of its own."""

    def __init__(self, columns: dict[str, str]):
        self.json, self.console, self.plain = (Table(columns) for _ in range(3))
        self.number = self.lines = 0  # lines read: all, and those that are not empty
        self.bad = self.first_bad = 0  # how many are not JSON, and the number of the first
        self.printed, self.config = [], {}  # lines of verl's printed settings; the settings once they are complete
        self.last = {}  # the last printed dict
        self.unread = 0  # printed dicts that could not be read
        self.error = ""  # the last line of the last traceback
        self.cut = ""  # the beginning of a printed dict that the terminal wrapped
        self.epoch, self.named = {}, False  # {"epoch": …} of the last line with one; whether figures name their step
        self.heading, self.sections = {}, ()  # {"step": …} of the last heading; enclosing YAML sections (indent, name)

    def take(self, line: str) -> None:
        self.number += 1
        line = COLOUR.sub("", line) if "\x1b" in line else line
        start = line.lstrip()
        if not start:
            return
        self.lines += 1
        row = json_object(line) if start[0] == "{" else None
        text = row.get("log", row.get("message", row.get("msg"))) if row else None  # of Docker or a cloud's logger
        if isinstance(text, str) and not any(self.json.is_figure(*cell) for cell in row.items()):
            row, line = None, COLOUR.sub("", text)
        if row is not None:
            return self.json.add(row)
        self.bad += 1
        self.first_bad = self.first_bad or self.number
        self.take_config(line)
        if ("Err" in line or "Exc" in line or "Interrupt" in line) and (match := ERROR.match(line)):
            self.error = match[1].strip()[:200]
        if "step:" in line and (match := VERL_LINE.search(line)):
            pairs = [part.rpartition(":") for part in unwrapped(match[2]).strip().split(" - ")]
            return self.console.add({"step": match[1], **{key: value for key, _, value in pairs if key}})
        torn = "{'" in line and line.rfind("{") > line.rfind("}") and CUT.search(line)
        if self.cut or torn:
            self.cut += line.rstrip()
            if "}" not in line and len(self.cut) < 4000:
                return
            line, self.cut = self.cut, ""
        line = unwrapped(line)
        for match in DICT.finditer(line) if "{'" in line else ():
            self.take_dict(match[0], HEADING.findall(line[: match.start()]))
        if not self.console.rows:
            self.take_pairs(line)

    def take_dict(self, text: str, headings: list[str]) -> None:
        """Add a flat dict that transformers' Trainer printed, such as {'loss': …}; the last heading is its step."""
        row = printed_dict(text)
        if row is None:
            self.unread += "'loss': " in text or "'reward': " in text
        elif not NAMES["trl"].keys().isdisjoint(row) or any(key.startswith("eval_") for key in row):
            if row != self.last:  # other ranks print the same dict
                self.console.add({"step": headings[-1]} | row if headings else row)
            self.last = row

    def take_pairs(self, line: str) -> None:
        """Add the pairs name=value of a line, under the last heading and epoch; its figures end a heading."""
        boxed = "│" in line
        if ":" in line:
            line = SPACED.sub(lambda name: f"{re.sub('[. ]+', '_', name[1].lower())}:", line)
        if boxed or line.count(" | ") > 1:
            line = CELL_PAIR.sub("=", line)
        if section := SECTION.fullmatch(line.rstrip()):
            indent, title, value = section.groups()
            outer = tuple(outer for outer in self.sections if len(outer[0]) < len(indent))
            line = "/".join([*(name for _, name in outer), f"{title}: {value}"])
            self.sections = outer if value else (*outer, (indent, title))
        pairs = pairs_of(line) if "=" in line or ":" in line else {}
        heading = None if pairs else HEADING.search(line)
        if heading and WORDED.match(line[heading.end() :].lstrip(" :|,/()[]0123456789")):
            words = pairs_of(WORDED.sub(r"\1=", line))
            pairs = words if sum(bool(common_name(name, "trl")) for name in words) > 1 else {}
        several = len(pairs) > 1 and not boxed and any(common_name(name, "trl") for name in pairs)
        self.named = self.named or (several and any(names_step(name) and "/" not in name for name in pairs))
        headings = HEADING.findall(line)
        if headings and (several or not self.named):  # "Step 1:" may be of a completion
            self.heading = {"step": headings[-1]}
        elif several:
            self.heading = {}
        if epoch := EPOCH.search(line):
            self.epoch = {"epoch": epoch[1]}
        if len(self.heading | pairs) > 1:
            self.plain.add(self.epoch | self.heading | pairs)

    def take_config(self, line: str) -> None:
        """Collect verl's printed settings line by line; parse them once they are complete."""
        begun = self.printed or "{'actor_rollout_ref': " in line
        if begun and not self.config and len(self.printed) < MOST_STEPS:
            self.printed.append(line)
            self.config = printed_config(self.printed) if line.rstrip().endswith("}}") else {}

    def run(self, path: Path, columns: dict[str, str], whole: bool) -> LoggedRun:
        """The run from JSON rows if these are half of the lines, else from text; `whole`: the last line is complete."""
        text = self.console if self.console.rows else self.plain
        table = self.json if self.json.rows * 2 >= self.lines or not text.rows else text
        need(
            table.rows,
            f"got {path}, in none of the known formats{self.error and f', ending in {self.error}'}; expected "
            "metrics.jsonl, trainer_state.json, TRL's or verl's console output, verl's file log, a CSV file, or lines "
            "of name=value; try the run's folder",
        )
        run = run_of_rows(path, table, columns, "log entries" if table is self.json else "console")
        if table is self.json and self.bad:
            torn = self.bad == 1 and (self.first_bad == self.lines or not whole)
            flaw = "the last line is torn" if torn else f"{self.bad} of {self.lines} lines are not JSON"
            run.remarks.append(f"{flaw} (line {self.first_bad}); left out")
        if run.trainer == "verl":
            run.config, run.settings = self.config, run.settings | verl_settings(self.config)
        elif table is self.console and table.counted:
            run.remarks.append("the console shows no steps: they are counted entries")
        if self.error:
            run.remarks.append(f"the log has an error: {self.error}")
        if self.unread:
            run.remarks.append(f"{self.unread} printed dicts like {{'loss': … could not be read; left out")
        return run


def printed_dict(text: str) -> dict | None:
    """A flat dict as Python prints it; None if the text is not one."""
    quoted = text.replace("'", '"')
    return json_object(quoted) or json_object(ODD.sub(r'"\1"', quoted))


def unwrapped(line: str) -> str:
    """A line with the bare numbers of np.float64(0.1), tensor(0.1, …) and array(0.1, …)."""
    return WRAPPED.sub(r"\1", line) if "np." in line or "tensor(" in line or "rray(" in line else line


def pairs_of(line: str) -> dict[str, str]:
    """{name: value} of a line's pairs, the first value of a name; those of an evaluation get the prefix eval_."""
    pairs, end, whole = {}, 0, ""
    for match in PAIR.finditer(line):
        name, between = short_name(match[1]), line[end : match.start()]
        tag = EVALUATED.search(between) if len(between) > 3 else None  # searches are slow
        whole = "eval_" if not end and tag and not tag[0].endswith(" ") else whole
        prefix = "" if names_step(name) else "eval_" if tag else whole
        pairs.setdefault(prefix + name, match[2])
        end = match.end()
    return pairs


def csv_separator(head: str) -> str:
    """The cell separator of a CSV file or of a pasted table, guessed from its first lines; "" for other text."""
    head = re.sub(r"^\ufeff?(#.*\n)+", "", head)
    header, _, rest = head.lstrip("\ufeff\n ").partition("\n")
    separator = max((",", ";", "\t", "|", "  "), key=header.strip().count)
    rows = [line.strip().split(separator) for line in rest.splitlines()[:9] if line.strip()]
    other = separator not in header or header[0] in "{[" or PAIR.search(header)
    return separator if not other and any(CELL.fullmatch(cell.strip(' "')) for row in rows for cell in row) else ""


def opened(path: Path) -> io.TextIOBase:
    """A log as a text stream; for a notebook, the output of its cells. A progress bar's "\\r" ends a line."""
    if path.suffix != ".ipynb":
        with path.open("rb") as file:  # PowerShell redirects as UTF-16
            encoding = "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        return path.open(encoding=encoding, errors="replace")
    try:
        outputs = [one for cell in json.loads(path.read_bytes())["cells"] for one in cell.get("outputs", ())]
        pages = ["".join(output.get("data", {}).get("text/html", ())) for output in outputs]
    except (ValueError, KeyError, AttributeError):
        raise UserError(f"got {path}, which is not a complete notebook; expected cells with outputs") from None
    # transformers shows its steps as an HTML table; the longest one belongs to the training
    rows = max((page.split("<tr") for page in pages if ">Step<" in page), key=len, default=[])
    table = [" | ".join(re.findall(r"<t[hd][^>]*>\s*([^<]*?)\s*</t", row)) for row in rows]
    return io.StringIO("\n".join(filter(None, table)) or "".join("".join(one.get("text", ())) for one in outputs))


def head_of(path: Path) -> str:
    """The first 64 K characters of a log; UserError if the file is empty, binary or unreadable."""
    try:
        with opened(path) as file:
            text = file.read(1 << 16)
    except OSError as error:
        raise UserError(f"got {path} ({error.strerror}); expected a log file or a run folder") from None
    need(text.strip(), f"got {path}, which is empty; expected a log with at least one step")
    odd = text.count("\0") + text.count("\ufffd")
    need(odd * 50 < len(text), f"got {path}, which is binary; expected metrics.jsonl, trainer_state.json, a log")
    return text


def json_objects(text: str) -> list[dict]:
    """The objects of a text that consists of these, whose last one may be torn; [] for other texts."""
    rows, end = [], 0
    while start := re.compile(r"[\s,]*(?=\{\s*\n)").match(text, end):
        try:
            row, end = json.JSONDecoder().raw_decode(text, start.end())
        except ValueError:
            return [] if "\n}" in text[start.end() :] else rows
        rows.append(row)
    return [] if text[end:].strip() else rows


def read_log(paths: list[Path], columns: dict[str, str]) -> LoggedRun:
    """Read a log as read_named does; if its score or step has no known name, columns count by the words of theirs."""
    run = read_named(paths, columns)
    fits = own_columns(run)
    guessed = {figure: names[0] for figure, names in fits.items() if len(names) == 1}
    if guessed.keys() & {"reward", "step"}:
        run = read_named(paths, guessed | columns)
        run.guessed, run.trainer = guessed, "other" if "reward" in guessed else run.trainer
        run.remarks.append(f"{meanings(guessed)}; if one is wrong, try --columns FIGURE=NAME")
        is_share = "right" in map(KIND.get, words_of(guessed.get("accuracy", "")))
        if is_share and 1.5 < max(run.values("held_out"), default=0) <= 100:
            run.series["held_out"] = {step: value / 100 for step, value in run.points("held_out")}
            run.remarks[-1] += f"; {guessed['accuracy']} exceeds 1, so it was read as per cent"
    for figure, names in fits.items():
        text = f"{' and '.join(names)} fit {figure} equally, so none was read; try --columns {figure}={names[0]}"
        run.remarks += [text] if len(names) > 1 else []
    return run


def read_named(paths: list[Path], columns: dict[str, str]) -> LoggedRun:
    """Read a run's log; `paths` are those of its starts, in order. `columns` maps names of FIGURES to columns."""
    head, path, table = head_of(paths[0]), paths[0], Table(columns)
    if re.match(r"\s*\[\s*\{", head) or (head.lstrip().startswith("{") and '"log_history"' in head):
        return read_state(path, table, columns)
    if separator := csv_separator(head):
        with opened(path) as file:
            lines = (line for line in file if line[0] != "#")
            lines = (re.sub(" {2,}", "\t", line.strip()) for line in lines) if separator == "  " else lines
            if separator != "," and re.search(r"\d,\d", head) and not re.search(r"\d\.\d", head):  # decimal commas
                lines = (line.replace(",", ".") for line in lines)
            reader = csv.DictReader(lines, delimiter=separator.replace("  ", "\t"))
            names = {name: short_name(name) for name in reader.fieldnames if not BAND.search(name)}
            if "-tag-" in path.stem and {*names} == {"Wall time", "Step", "Value"}:  # of tensorboard
                names["Value"] = path.stem.rpartition("-tag-")[2].replace("train_", "train/", 1)
            twice = [name for name, count in Counter(names.values()).items() if name and count > 1]
            need(not twice, f"got {path} with several columns {twice[:1]}; expected one run; try an export of one run")
            for row in reader:
                rest = row.pop(None, [""])
                if not table.rows:  # an index that has no name, as of pandas
                    shift = len(rest) == 1 and number_of(rest[0]) is not None
                if shift:
                    row = dict(zip(row, [*row.values(), *rest][1:], strict=False))
                table.add({short: row[name] for name, short in names.items() if short})
        gaps = table.drop_gaps()
        run = run_of_rows(path, table, columns)
        run.remarks += [f"NaN in {', '.join(gaps)} is read as an empty cell"] if gaps else []
        return run
    if re.match(r"\{\s*\n", head):
        with opened(path) as file:
            for row in json_objects(file.read()):
                table.add(row)
        if table.rows:
            return run_of_rows(path, table, columns)
    reader, line = Reader(columns), "\n"
    for start in paths:
        with opened(start) as file:
            for line in file:
                reader.take(line)
    return reader.run(path, columns, line.endswith("\n"))


def read_state(path: Path, table: Table, columns: dict[str, str]) -> LoggedRun:
    """Read a trainer_state.json or a dumped log_history; entries are flat objects, so a torn file can be read too."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        is_state = text[:1] == b"{"
        for match in re.finditer(rb"\{[^{}]*\}", text):
            row = json_object(match[0]) or printed_dict(match[0].decode(errors="replace")) or {}
            if row and ("step" in row or not is_state):
                table.add(row)
        config = {name.decode(): float(value) for name, value in TRL_STATE.findall(text)}
    need(table.rows, f"got {path} without an entry in log_history; expected one with a step; try the console output")
    if not config:
        return run_of_rows(path, table, columns)
    run = run_of(path, "trainer_state.json", "trl", table, columns)
    run.config, run.settings["steps"] = config, config.get("max_steps")
    return run


# ------------------------------------------------------------------------ run folder (src/parts/reading/run_folder.py)

LOGS = ("metrics.jsonl", "trainer_state.json", "logging.jsonl")  # the last is ms-swift's
ENDINGS = (".jsonl", ".log", ".out", ".csv", ".tsv", ".txt", ".ipynb")
NO_LOG = re.compile(r"(requirements|readme|licen[cs]e|notice).*\.txt", re.IGNORECASE)
FURTHER = ("logs/*", "log/*", "wandb/*/files/*.log")  # where logs are, if the folder itself has none
# series that any kind of training may log; a log with others is one of RL
OTHER_TRAINING = {"loss", "lr", "grad_norm", "entropy", "memory", "gpu_memory", "time_step", "held_out"}
OF_TRIALS = re.compile(r"\b(trial|experiment|variant|sweep)", re.IGNORECASE)
PAIRS = re.compile(r"(?<!\S)(train/|eval_)?(rewards/)?(chosen|margins?)(?!\S)")  # of DPO, KTO, a reward model
ACCURACIES = {"part:acc", "part:accuracy", "part:train_acc", "part:train_accuracy"}  # without a score beside it


def log_of_folder(folder: Path) -> Path:
    """A log of a known name, the last checkpoint's state, or the only log in a folder or below; UserError otherwise."""
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda p: (len(p.parent.name), p))
    if known := [folder / name for name in LOGS if (folder / name).exists()] + states[-1:]:
        return known[0]
    others = sorted(path for path in folder.iterdir() if path.suffix in ENDINGS and not NO_LOG.match(path.name))
    further = [path for form in FURTHER for path in folder.glob(form) if path.suffix in ENDINGS and path.is_file()]
    further = {path.resolve(): path for path in further}.values()  # wandb/latest-run is a link
    depths = ("*", "*/*", "*/*/checkpoint-*")
    below = [path.parent for name in LOGS for depth in depths for path in folder.glob(f"{depth}/{name}")]
    runs = sorted({x.parent if re.fullmatch(r"checkpoint-\d+", x.name) else x for x in below})
    logs = others if len(others) == 1 and not further and not runs else [*filter(is_log, others)]
    if len(runs) == 1 and (not logs or (len(logs) == 1 and is_console_of(logs[0], runs[0]))):
        return log_of_folder(runs[0])
    need(
        logs or not runs,
        f"got {folder}, which holds {len(runs)} runs; expected one; try diagnose.py {' '.join(map(str, runs[:3]))}",
    )
    anywhere = sorted(path for form in ("*.json", "*/*") for path in folder.glob(form))[:50]  # a self-written loop's
    anywhere = [path for path in anywhere if path.suffix in (".json", *ENDINGS)]
    for places, least in ((further, 0), (anywhere, 3)):
        logs = logs or sorted(path for path in places if is_log(path, least))
    names = ", ".join(str(path.relative_to(folder)) for path in (logs or others)[:5])
    need(
        len(logs) == 1,
        f"got {folder} with {names or 'no log'}; expected metrics.jsonl, trainer_state.json, "
        f"checkpoint-*/trainer_state.json or one {', '.join(ENDINGS)}; try the file, or what "
        "tensorboard or wandb exports as CSV",
    )
    return logs[0]


def is_console_of(path: Path, folder: Path) -> bool:
    """Whether a log beside a run's folder has the run's own figures, so that the folder, which knows more, is read."""
    with contextlib.suppress(UserError):
        console, run = (read_log([x], {}).values("score") for x in (path, log_of_folder(folder)))
        is_near = [abs(x - y) <= 1e-3 * max(1.0, abs(y)) for x, y in zip(console, run, strict=False)]
        return len(console) == len(run) > 0 and all(is_near)
    return False


def is_log(path: Path, least: int = 0) -> bool:
    """Whether a file is an RL log with `least` scores or more, not data or samples."""
    with contextlib.suppress(UserError):
        run = None if is_samples(path, ("completion",)) else read_log([path], {})
        return run is not None and has_rl(run) and len(run.values("score")) >= least
    return False


def has_rl(run: LoggedRun) -> bool:
    """Whether a log has metrics that only RL has, or values that are not finite."""
    of_pairs = PAIRS.search(" ".join(run.columns)) and "objective/scores" not in run.columns
    return not is_of_trials(run) and bool(
        run.bad or (run.steps() and not of_pairs and run.series.keys() - OTHER_TRAINING - ACCURACIES)
    )


def is_of_trials(run: LoggedRun) -> bool:
    """Whether each row is a trial of its own: the rows are numbered as such, and the learning rate goes up and down."""
    changes = [b - a for a, b in itertools.pairwise(run.values("lr"))]
    turns = sum(a * b < 0 for a, b in itertools.pairwise(changes))
    numbered = OF_TRIALS.search(" ".join(run.columns)) and not any(map(names_step, run.columns))
    return bool(numbered) and 4 * turns > len(changes)


def starts_of(path: Path) -> list[Path]:
    """The logs of all starts of a resumed verl run (metrics.jsonl, metrics.2.jsonl, …), without empty ones."""
    later = [other for other in path.parent.glob("metrics.*.jsonl") if other.suffixes[0][1:].isdecimal()]
    later = sorted(later, key=lambda other: int(other.suffixes[0][1:])) if path.name == "metrics.jsonl" else []
    return [start for start in (path, *later) if start.stat().st_size] or [path]


def json_beside(folder: Path, name: str, remarks: list[str] | None = None) -> dict:
    """The object in a JSON file of a run's folder; {} if there is no file, or it is unreadable, which adds a remark."""
    try:
        return dict(json.loads((folder / name).read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError, TypeError, RecursionError):
        if remarks is not None and (folder / name).exists():
            remarks.append(f"{name} beside it could not be read")
        return {}


def add_own_settings(run: LoggedRun, path: Path) -> None:
    """Add the settings that the run's trainer wrote beside its log."""
    console = path.with_name("verl.log")
    if run.trainer == "verl" and not run.config and console.is_file():  # verl_train.py writes it beside verl's log
        reader = Reader({})
        for line in console.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            reader.take_config(line)
        run.config, run.settings = reader.config, run.settings | verl_settings(reader.config)
    if run.format != "metrics.jsonl":
        return
    is_page = run.trainer == "one_page" and path.with_name("settings.json").exists()
    run.config = json_beside(path.parent, "settings.json" if is_page else "config.json", run.remarks)
    run.config = {} if "model_type" in run.config else run.config  # of a model that was saved there
    if run.config:
        trainer, common = our_settings(run.config, is_page)
        run.trainer, run.settings = trainer or run.trainer, run.settings | common


def load_run(
    source: str,
    columns: dict[str, str] | None = None,
    settings: str = "",
    samples: str = "",
    data: str = "",
    reward: str = "",
    group_size: int = 0,
) -> LoggedRun:
    """Load a run from its log or folder, with its settings and samples.

    `settings`, `samples`, `data` and `reward` (FILE.py:function) name files that replace those beside the log.
    UserError if the log is not one of RL, or if a named file is missing or has other contents.
    """
    path, later = Path(source), []
    if path.is_dir():
        path, *later = starts_of(log_of_folder(path))
    run = read_log([path, *later], columns or {})
    if later:
        run.remarks.append(f"{1 + len(later)} starts, to {later[-1].name}: for repeated steps the last run counts")
    add_own_settings(run, path)
    folder = path.parent.parent if re.fullmatch(r"checkpoint-\d+", path.parent.name) else path.parent
    add_settings(run, folder if Path(source).is_dir() else None, settings)
    if group_size:
        run.settings["group_size"] = group_size
    if run.trainer == "verl":
        drop_padded(run)
    names = ", ".join(run.columns)
    scores = [name for name in run.columns if re.search("(?i)reward|return|score|^value$", name)]
    need(not is_of_trials(run), f"got {path}, a table of trials; expected one run; try the log of one of them")
    need(
        has_rl(run) or not is_samples(path, ("completion", "prompt")) or is_samples(path),
        f"got {path}, samples without scores; expected a score of each, and the log of the run beside them; try the "
        "samples with a column score",
    )
    need(
        has_rl(run),
        f"got {path} ({run.format}) with {names[:200] or 'no figures'} and none that only RL has: it may be a log of "
        f"another kind of training, such as SFT or DPO; expected names such as "
        f"{', '.join(list(NAMES[run.dialect])[:3])}; try diagnose.py --columns "
        f"reward={scores[0] if len(scores) == 1 else 'NAME'} where a column is the score",
    )
    for flag, file in (("data", data), ("reward", reward.rpartition(":")[0] or reward)):
        need(not file or Path(file).is_file(), f"got --{flag} {file}, which does not exist; expected a file")
    if run.trainer in ("trl", "verl") and not samples:
        run.samples = (trl_samples if run.trainer == "trl" else verl_samples)(folder, run)
    alone = Path(source).is_dir() or path.name in LOGS  # in a folder of its own
    run.samples = run.samples or samples_beside(path, run, alone, samples)
    add_texts(run, data, folder)
    need(
        run.texts or not samples,
        f"got --samples {samples} with {', '.join(map(str, [*(run.samples or [{}])[0]][:8]))}; expected prompt, "
        "completion and score; try other names for its columns",
    )
    add_reward_source(run, reward, folder, alone)
    return run


def add_texts(run: LoggedRun, data: str, folder: Path) -> None:
    """Fill `texts` and `golds` from the samples and data files: those named, else JSONL files beside the log."""
    rows = data_rows(data, folder) if data else data_rows(run.settings.get("data"), folder, run)
    others = data_rows(run.settings.get("eval_data"), folder, run)
    if run.samples and not rows:
        beside = [path for place in (folder, folder.parent) for path in sorted(place.glob("*.jsonl"))]
        named = [path for path in beside if re.search("train|data|eval|test", path.stem)][:6]
        rows = [row for path in named if "train" in path.stem for row in data_rows(path, folder, run)]
        others = [row for path in named if "train" not in path.stem for row in data_rows(path, folder, run)]
    golds = [{prompt: gold for prompt, row in part if (gold := gold_of(row)) is not None} for part in (others, rows)]
    run.golds, run.settings["rows"] = golds[1], len({prompt for prompt, _ in rows})
    run.texts = sample_texts(run.samples, golds[0] | golds[1])
    sampled = {text.prompt for text in run.texts}
    run.rows = {prompt: row for prompt, row in [*others, *rows] if prompt in sampled}


def file_near(name: str, folder: Path) -> Path | None:
    """The file that settings name, at that path or in the run's folder or its parent; None if there is none."""
    paths = [Path(name), folder / name, folder / Path(name).name, folder.parent / Path(name).name] if name else []
    return next((path for path in paths if path.is_file()), None)


def data_rows(data, folder: Path, run: LoggedRun | None = None) -> list[tuple[str, dict]]:
    """(prompt, row) pairs of a data file; with `run`, an unreadable file adds a remark and yields none."""
    path = file_near(str(data or ""), folder)
    rows = rows_of_samples(path, run) if path and path.suffix in (".jsonl", ".json", *TABLES, ".parquet") else []
    return [(prompt, row) for row in rows if (prompt := plain_text(row.get("prompt")))]


def named_rewards(spec: str, run: LoggedRun) -> list[tuple[str, str]]:
    """(file, function) of the rewards that the flag or else the settings name; correctness rewards come first."""
    usual = run.settings.get("reward_name") or ("compute_score" if run.trainer == "verl" else "")  # verl's default
    named = spec or run.settings.get("reward") or []
    specs = [item for item in ([named] if isinstance(named, str) else named) if isinstance(item, str)]
    pairs = [(item, usual) if item.endswith(".py") else item.partition("*")[0].rpartition(":")[::2] for item in specs]
    return sorted(pairs, key=lambda pair: not names_correctness(pair[1]))


def add_reward_source(run: LoggedRun, spec: str, folder: Path, alone: bool) -> None:
    """Add the source of the correctness reward: from the flag, settings, a script beside the log or the run's own.

    In the parent folder, where other runs may have scripts, only functions count that the flag or settings name. If no
    name is known, the source is that of the only function in the run's own folder that takes completions.
    """
    rewards = named_rewards(spec, run)
    files = [(path, [name]) for file, name in rewards if (path := file_near(file, folder)) and path.suffix == ".py"]
    words = re.findall(r"\w+", str([name for _, name in rewards]))
    places = ((folder, [*words, *run.parts()]), (folder.parent, words))
    scripts = [(path, names) for place, names in places for path in sorted(place.glob("*.py"))[:20]]
    scripts += [(path, [*words, *run.parts()]) for path in [alone and script_of_output(folder)] if path]
    if alone and not words and (run.guessed or not run.parts()):
        takes, paths = {*COMPLETIONS, run.guessed.get("completion")}, sorted(folder.glob("*.py"))[:20]
        scripts = [(path, [x]) for path in paths for x in named_functions(path, [""], takes)[1]]
        scripts = scripts if len(scripts) == 1 else []
    for path, names in files or scripts:
        run.reward_name, run.reward_source = function_of(path, names)
        if run.reward_source:
            run.reward_file = path.name
            return


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


# --------------------------------------------------------------------------- cause (src/parts/reading/causes/cause.py)

CERTAIN, LIKELY = 0.9, 0.6  # strengths of evidence; below LIKELY a cause is reported only beside another
# signs of a run that learns nothing (STILL), and of one that loses what it has learned (LOST)
STILL = "flat_score constant_scores equal_groups held_out_flat"
LOST = "score_fell clipped kl_high entropy_fell entropy_rose length_fell length_rose truncated"
# consequences if nothing can be learned (FLAT), and if something wrong is learned (FALSE)
FLAT = (
    f"{STILL} constant_reward nothing_moves no_group_variance too_sparse too_hard kl_holds_policy critic_useless "
    "part_bought"
)
FALSE = f"{FLAT} {LOST} updates_too_large memorised_prompts reward_ignores_answer too_easy"
TRY_REWARD = "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA"
TRY_MODEL = f"{TRY_REWARD} --model MODEL"


@dataclass(frozen=True)
class Evidence:
    """Facts that support a cause, and how strongly; `since` is the step from which on the run is broken."""

    strength: float
    facts: list[Fact] = field(default_factory=list)
    since: int | None = None


@dataclass(frozen=True)
class Cause:
    """A root cause. `explains` names the signs and other causes that follow from it."""

    name: str
    says: str
    test: Callable[[LoggedRun], Evidence | None]
    explains: str
    change: str
    source: str
    decide_with: str = ""
    breaks: bool = False  # it breaks a run, rather than only preventing a gain

    def evidence(self, run: LoggedRun) -> Evidence | None:
        """The evidence from --rescore if there is any, else that of its test."""
        if self.name in run.trials:
            return Evidence(CERTAIN + 0.09, [Fact(run.trials[self.name], "rescore")], since=1 if self.breaks else None)
        return self.test(run)


def cause(**more) -> Callable:
    """Decorator: make a Cause from its test, whose name and docstring become the cause's name and description."""
    return lambda test: Cause(test.__name__, (test.__doc__[0].lower() + test.__doc__[1:]).rstrip("."), test, **more)


def shown(texts, text: str) -> Fact:
    """A fact about samples; it names the first three."""
    return Fact(text, "samples", texts[0].step if texts else None, tuple(t.id for t in texts[:3]))


# ------------------------------------------------------------------- machinery (src/parts/reading/causes/machinery.py)

WATCHED = ("loss", "grad_norm", "kl", "entropy", "value_loss", "score")
MISMATCH = (  # series, lowest and highest value that is fine, words
    ("gap_mean", -math.inf, math.log(1.05), "mean difference of log-probs {:.3g} nats; above log 1.05 = 0.049"),
    ("weight_mean", 0.5, 2, "mean importance weight {:.3g}; outside 0.5 to 2"),
    ("probs_correlation", 0.9, math.inf, "correlation of the two probabilities {:.3g}; below 0.9 (our heuristic)"),
)
LEAST_GROWTH = {"mismatch_kl": 1e-3, "gap_mean": 1e-3, "gap_max": 0.05}  # smaller distances, in nats, are ignored


@cause(
    explains=f"{FLAT} {LOST} updates_too_large",
    change="compute in bf16 on float32 weights; clip gradients to 1; lower {lr}; continue from an earlier checkpoint",
    source="definition; unsloth#3006, verl#2505",
    breaks=True,
)
def overflow(run: LoggedRun) -> Evidence | None:
    """Numbers overflow: an update too large, a log-prob of -inf, or fp16."""
    bad = [entry for entry in run.bad if any(common_name(entry[0], dialect) in WATCHED for dialect in NAMES)]
    if run.dialect == "trl" and len(bad) <= max(5, 0.05 * len(run.steps())):  # as fp16's loss scale settles
        bad = bad if any(common_name(key, "trl") != "grad_norm" for key, *_ in bad) else []
    skipped = [step for step, value in run.points("skipped") if value]
    allowed = 0.2 if run.settings.get("precision") == "fp16" else 0.01
    if bad:
        metric, step, value = bad[0]
        text = f"{metric} is {value} at step {step}, {len(bad)} such values in all"
        return Evidence(CERTAIN + 0.09, [Fact(text, metric, step)], step)
    if len(skipped) > allowed * len(run.values("skipped")):
        text = f"{len(skipped)} steps left updates out because a gradient was not finite, first step {skipped[0]}"
        return Evidence(CERTAIN + 0.07, [run.fact("skipped", text, skipped[0])], skipped[0])
    return None


def jumps_at(run: LoggedRun, series: dict[str, tuple[list, float]], step: int, least: float) -> list[Fact]:
    """Facts on figures that at one step go back towards where the run began, by over `least` times their noise."""
    facts = []
    for name, (points, usual) in series.items():
        place = bisect.bisect_left(points, (step, -math.inf))
        parts = (points[max(0, place - 6) : place], points[place : place + 3], points[:3])
        before, after, begin = ([value for _, value in part] for part in parts)
        if len(before) < 4 or len(after) < 2:
            continue
        a, b, start = map(statistics.median, (before, after, begin))
        scatter = max(noise(before), usual, 0.02 * abs(a), 1e-6)
        way = math.copysign(1, start - a)
        back = min(way * (b - a), way * (after[0] - before[-1]))  # at this very step, and it stays there
        if min(abs(b - a), abs(start - a)) > least * scatter and back >= 0.6 * abs(start - a):
            text = f"{run.name(name)} goes from {a:.3g} back to {b:.3g}, where the run began"
            facts.append(run.fact(name, text, step))
    return facts


def rescaled_score(run: LoggedRun) -> Fact | None:
    """A fact if a steady score, and its spread if logged, triples between two steps and stays above 1: no mere gain."""
    values, spreads = run.values("score"), run.values("score_std")
    for i in range(5, len(values) - 4):
        before, after = values[i - 5 : i], values[i : i + 5]
        if 3 * max(before) < min(after) and max(before) <= 1 < min(after) and max(before) < 2 * min(before):
            both = [values, spreads if len(spreads) == len(values) else values]
            scale, wider = (statistics.median(x[i : i + 5]) / (statistics.median(x[i - 5 : i]) or 1e-9) for x in both)
            if 0.7 < wider / scale < 1.4:
                text = f"the score is {scale:.3g} times as large from one step on"
                return run.fact("score", text, run.points("score")[i][0])
    return None


@cause(
    explains=f"{STILL} {LOST} updates_too_large part_dies critic_useless stale_weights part_bought memorised_prompts",
    change="resume from the run's newest checkpoint with its optimizer and settings (--resume); keep the reward's unit",
    source="an exact resume gives the figures of an uninterrupted run; limits: our heuristic",
    breaks=True,
)
def jump_at_restart(run: LoggedRun) -> Evidence | None:
    """The run jumps: a restart changes weights, optimizer, schedule, data or settings, or the reward's unit changes."""
    if fact := rescaled_score(run):
        return Evidence(CERTAIN + 0.06, [fact], since=fact.step)
    rates, named = run.points("lr")[1:], [x for x in ("entropy", "score", "length") if len(run.series.get(x, {})) > 5]
    series = {name: (run.points(name), noise(run.values(name))) for name in named}
    trios = zip(rates, rates[1:], rates[2:], strict=False)  # a rate that rises again after a fall shows a new schedule
    anew = {step for (_, before), (_, last), (step, rate) in trios if before > last and rate > 1.5 * last}
    kl = run.points("kl")
    first = max(2 * abs(kl[0][1]), 1e-6) if kl else 0.0  # the KL of the starting weights, up to rounding
    past = [(step, value, [before for _, before in kl[i - 5 : i]]) for i, (step, value) in enumerate(kl) if i >= 5]
    started = {step for step, value, before in past if abs(value) <= first and statistics.median(before) > 100 * first}
    restarts = {*anew, *started, *run.settings.get("restarts", ())}
    for step in sorted({*restarts, *run.steps()[5:-2]}):
        facts = jumps_at(run, series, step, 1.2 if step in restarts else 2)
        if step in restarts and (facts or (step in anew and not run.learns())):  # a new schedule is itself a jump
            shows = "KL to the start is 0 again" if step in started else "log shows a restart"
            restart = Fact(f"the {shows} at step {step}", "kl" if step in started else "step", step)
            return Evidence(CERTAIN + 0.06 if facts else LIKELY + 0.1, [restart, *facts], since=step)
        # without a known restart, entropy and another series must jump back at once
        if step not in restarts and len(facts) > 1 and facts[0].figure == run.name("entropy"):
            return Evidence(CERTAIN + 0.06, facts, since=step)
    return None


@cause(
    explains=f"{LOST} flat_score held_out_flat updates_too_large critic_useless stale_weights part_dies nothing_moves",
    change="the same {temperature}, top-p 1, top-k off, no penalty on both sides; importance weights for what is left",
    source="NeMo-RL docs/guides/grpo.md; verl docs/algo/rollout_corr.md; verl#2996, verl#6280",
    decide_with="python scripts/selfcheck.py scripts/ppo_train.py",
    breaks=True,
)
def sampler_mismatch(run: LoggedRun) -> Evidence | None:
    """Sampler and trainer give the same tokens different probabilities."""
    penalty = run.number("repetition_penalty")
    if penalty is not None and penalty != 1:
        text = f"the sampler has a repetition penalty of {penalty:g}, the trainer has none"
        return Evidence(LIKELY + 0.34 * (abs(penalty - 1) >= 0.2), [Fact(text, "repetition_penalty")], since=1)
    # exact (fp32, our sampler): the two differ by rounding alone; else single tokens may differ much
    gap, kl = (0.01, 1e-6) if run.settings.get("exact") else (2.0, 0.01)
    largest = ("gap_max", -math.inf, gap, f"largest difference of a token {{:.3g}} nats; above {gap} (our heuristic)")
    apart = ("mismatch_kl", -math.inf, kl, f"KL of sampler and trainer {{:.3g}} nats a token; above {kl:g}")
    sure = LIKELY + 0.2 if run.learns() else CERTAIN + 0.03
    # single tokens differ much in bf16, so the mean decides if it is logged
    for name, low, high, words in (*MISMATCH, apart, *([] if run.values("gap_mean") else [largest])):
        points, values = run.points(name), run.values(name) or [low]
        # if it begins within the limits, `stale_weights` is the cause
        if not any(low <= statistics.median(part) <= high for part in (values, values[:2])):
            first = next(step for step, value in points if not low <= value <= high)
            text = f"{words.format(statistics.median(values))}; median of all steps"
            return Evidence(sure, [run.fact(name, text, first)], since=first)
    updates, constant = run.series.get("updates", {}), run.settings.get("updates")
    for name, least, clear in (("ratio_max", 1 + 1e-3, 1.2), ("clip_frac", 1e-3, 0.02)):
        points = [(step, value) for step, value in run.points(name) if updates.get(step, constant) == 1]
        usual = points and statistics.median(value for _, value in points) > least
        high = [point for point in points if point[1] > (least if usual else clear)]
        if usual or len(high) >= 3:  # single steps may be bf16's rounding
            step, value = high[0]
            text = f"{run.name(name)} is {value:.4g} at step {step}, which has one update per rollout"
            return Evidence(sure, [run.fact(name, text, step)], since=step)
    return None


@cause(
    explains=f"{FLAT} {LOST} sampler_mismatch updates_too_large",
    change="copy all weights to the sampler after every step; --check_sync names the tensors that differ",
    source="allenai/open-instruct#1473; five times the start: our heuristic",
    breaks=True,
)
def stale_weights(run: LoggedRun) -> Evidence | None:
    """The sampler keeps old weights, wholly or in part, while the trainer moves away from them."""
    for name, least in LEAST_GROWTH.items():
        values = [abs(value) for value in run.values(name)]
        if len(values) < 4:
            continue
        middle, first, (early, late) = statistics.median(values[2:]), values[0], ends(values)
        synced = 0 < first < 0.01 * least and middle > least  # with one engine the first step agrees up to rounding
        if synced or (trend(values) > 0 and late > max(least, 5 * early) and run.trend("score") <= 0):
            step = next(step for step, value in run.points(name) if abs(value) > least)
            text = f"{run.name(name)} grew from {first:.2g} to {max(middle, late):.2g} nats a token"
            return Evidence(CERTAIN + 0.05, [run.fact(name, text, step)], since=step)
    return None


@cause(
    explains=f"{STILL} too_hard too_sparse nothing_moves",
    change="read the calls in samples.jsonl; check the form of calls; use an instruct model that was trained on tools",
    source="definition: what is never sampled gets no gradient; every second call: our heuristic",
)
def conversation_fails(run: LoggedRun) -> Evidence | None:
    """The model does not use its tools: it calls none, or most calls end in an error."""
    calls, failures, late = run.values("tool_calls"), run.values("tool_failures"), run.ends("tool_failures")[1]
    # no time spent in tools or replies means that the environment has no reply, so it must have tools
    tools = run.settings.get("tools") or not any(run.values("tool_seconds"))
    if len(calls) >= 3 and not any(calls) and tools:
        return Evidence(CERTAIN, [run.fact("tool_calls", f"not one tool call in {len(calls)} steps")])
    if len(failures) >= 3 and late >= 0.5 and (not calls or run.ends("tool_calls")[1] > 0):
        return Evidence(CERTAIN, [run.fact("tool_failures", f"{late:.0%} of the tool calls end in an error")])
    return None


MACHINERY_CAUSES = (overflow, jump_at_restart, sampler_mismatch, stale_weights, conversation_fails)


# ------------------------------------------------------------------------- groups (src/parts/reading/causes/groups.py)

SAME_LOG = LIKELY + 0.15  # for causes that a log cannot tell apart: copies, or prompts always or never solved
# limits below which sampling is nearly greedy (min_p: above 0.5); a top_k of 0 or less is off
LEAST = {"temperature": 0.3, "top_p": 0.5, "top_k": 4, "min_p": 0, "do_sample": True}


def pass_rate(run: LoggedRun, steps: int = EARLY) -> tuple[float, float, float] | None:
    """(pass rate in the first steps, low, high) with its 95 % interval; None unless the reward is from 0 to 1."""
    means = run.answer_part()[1]
    if not means or min(means) < 0 or max(means) > 1:
        return None
    early = means[:steps]
    count, rate = run.batch(len(early)), sum(early) / len(early)
    return rate, *wilson_interval(rate * count, count)


def paid_though_cut(mean: float, cut: float) -> bool:
    """Whether mean score and truncated share add up to so much that many truncated completions must have been paid."""
    return mean + cut - 1 > 0.5 * min(mean, cut)


def groups_of_one_prompt(texts: list[Text]) -> list[list[Text]]:
    """Completions of the same training prompt at the same step."""
    return grouped([t for t in texts if t.kind == "train"], lambda t: (t.step, t.prompt))


def alike_at_pass_rate(run: LoggedRun, alike: list[float]) -> str:
    """A text if groups score alike from the start far more often than their middling pass rate explains; else ""."""
    rate = pass_rate(run, len(alike)) if len(alike) >= 3 else None
    if not rate or not 0.1 < rate[0] < 0.9:
        return ""
    share, count = sum(alike) / len(alike), run.batch(len(alike)) // int(run.number("group_size") or 8)
    expected = forecast(rate[0], int(run.number("group_size") or 8))
    text = f"{share:.0%} of the groups score all alike at pass rate {rate[0]:.2g}, where chance gives {expected:.0%}"
    # prompts with other pass rates than the mean are alike more often
    sure = wilson_interval(share * count, count)[0] >= 0.7
    return text if sure and share >= max(0.8, expected + 0.25) else ""


def unit(shares: list[float]) -> int:
    """The smallest n up to 1024 with which every share is a whole number of n-ths; 0 if there is none."""
    return next((n for n in range(1, 1025) if all(abs(n * x - round(n * x)) < 1e-3 for x in shares)), 0)


def alike_by_chance(run: LoggedRun) -> str:
    """A text if groups score alike only as often as 0/1 scores that ignore the prompt would; else ""."""
    steps = run.series.get("score", {}).keys() & run.series.get("zero_std", {}).keys()
    scores, alike = ([run.series[name][step] for step in steps] for name in ("score", "zero_std"))
    rate, batch, groups = statistics.fmean(scores or [0.0]), unit(scores), unit(alike)  # completions, groups a step
    if not 0.3 < rate < 0.7 or not 0 < groups < batch or batch % groups:
        return ""
    size, count, share = batch // groups, groups * len(alike), statistics.fmean(alike)
    low, high = wilson_interval(share * count, count)
    varied = (forecast(rate - 0.25, size) + forecast(rate + 0.25, size)) / 2  # if half of the prompts are easier
    if low > forecast(rate, size) or high >= varied:
        return ""
    return f"{share:.0%} of groups of {size} score all alike, {forecast(rate, size):.0%} would by chance"


@cause(
    explains=FLAT.replace("no_group_variance ", "")
    + " entropy_fell kl_high clipped too_easy sampler_mismatch updates_too_large",
    change="{temperature} 1.0, top-p 1, top-k and min-p off, even if the model card recommends other values",
    source="equal scores in a group give advantage 0; limits 0.3, 0.5, 4: our heuristic",
    decide_with="python scripts/diagnose.py RUN --settings FILE --samples FILE",
)
def near_greedy_sampling(run: LoggedRun) -> Evidence | None:
    """Sampling is nearly greedy: completions of a prompt hardly differ, so neither do their scores."""
    facts, copies_fact = [], []
    if run.learns() and min(run.early("zero_std"), default=0.0) < 0.5:
        return None
    for name, least in LEAST.items():
        value = run.settings.get(name)
        off = not isinstance(value, (int, float)) or (name == "top_k" and value <= 0)
        if not off and (value < least or (name == "min_p" and value > 0.5)):
            facts.append(Fact(f"{name} is {value:g}", name))
    groups = groups_of_one_prompt(run.texts)
    first = sorted({group[0].step for group in groups})[:2]
    groups = [group for group in groups if group[0].step in first and len(group) >= 4]
    alike = [group for group in groups if {t.completion for t in group} == {group[0].completion} != {""}]
    if alike:  # empty completions do not count: the model ends at once
        text = f"all {len(alike[0])} completions of a prompt are identical at step {alike[0][0].step}"
        copies_fact = [shown(alike[0], text)]
    if facts:
        return Evidence(CERTAIN + 0.05, facts + copies_fact)
    if (run.number("temperature") or 0) >= 0.5:
        return None
    rate, entropy = pass_rate(run, steps=3), run.early("entropy", 3)
    able = rate is not None and rate[1] > 0.8  # a model that is mostly right has a low entropy anyway
    if entropy and not able and max(entropy) < 0.02 and min(run.series["entropy"]) <= EARLY:
        text = f"{run.name('entropy')} of the first steps is {max(entropy):.2g} nats a token"
        return Evidence(LIKELY + 0.2, [run.fact("entropy", text, 1), *copies_fact])
    if copies_fact and len(alike) == len(groups) and groups[0][0].step <= EARLY:
        return Evidence(LIKELY + 0.2, copies_fact)
    copies = "" if groups or run.is_constant() else alike_at_pass_rate(run, run.early("zero_std", 20))
    return Evidence(SAME_LOG, [run.fact("zero_std", copies, min(run.steps()))]) if copies else None


def goes_on(text: Text) -> bool:
    """Whether the first line is an answer, and more lines follow it."""
    line, _, rest = text.completion.strip().partition("\n")
    return len(line) <= len(text.gold) + 60 and bool(rest.strip()) and replace(text, completion=line).has_gold()


@cause(
    explains=f"{STILL} truncated limit_too_short answer_form gold_mismatch too_hard too_sparse constant_reward "
    "part_bought no_group_variance critic_useless",
    change="score the answer's own line in the reward, or teach the model to end: scripts/warm_start.py",
    source="counting; trl#976; four fifths, and a line of 60 characters beside the answer: our heuristic",
)
def never_ends(run: LoggedRun) -> Evidence | None:
    """The model does not end after its answer: completions go on until the limit cuts them."""
    texts = [t for t in early_texts(run.texts) if t.finished is not None and t.gold and t.pay is not None]
    cut = [t for t in texts if not t.finished]
    holders = [t for t in cut if t.has_gold()]
    on = [t for t in holders if goes_on(t)]
    if len(on) < max(4, 0.8 * len(holders)) or len(cut) < 0.8 * len(texts) or sum(t.pay > 0 for t in on) > len(on) / 4:
        return None
    text = f"{len(on)} logged completions give the right answer in their first line and go on until they are cut"
    return Evidence(CERTAIN + 0.06, [shown(on, text)])


@cause(
    explains=f"{STILL} truncated length_fell answer_form gold_mismatch too_hard too_sparse constant_reward part_bought "
    "no_group_variance critic_useless",
    change="raise {max_length} to what whole answers need, or ask for shorter ones; if none ends, check its EOS",
    source="TRL completions/clipped_ratio; trl#5697; limit of a fifth: our heuristic",
)
def limit_too_short(run: LoggedRun) -> Evidence | None:
    """The length limit is too short for an answer: completions are cut from the first step on."""
    name = "truncated" if run.series.get("truncated") else "limit"
    cut, more, scores, limit = run.early(name, 3), run.early(name, 20), run.values("score"), run.number("max_length")
    if not cut or cut[0] < 0.2 or min(run.series[name]) > 10 or run.ends(name)[1] < 0.1:
        return None
    share = sum(cut) / len(cut)
    stays = min(share, sum(more) / len(more))  # small batches need more steps to be sure
    sure = wilson_interval(share * run.batch(len(cut)), run.batch(len(cut)))[0] >= 0.2
    if not sure and (stays < 0.2 or wilson_interval(stays * run.batch(len(more)), run.batch(len(more)))[0] < 0.15):
        return None
    ended, whole = ([t for t in run.texts if t.finished is kind and t.score is not None] for kind in (False, True))
    if ended and whole:
        paid, usual = (sum(t.score for t in texts) / len(texts) for texts in (ended, whole))
        unharmed = paid >= 0.7 * usual > 0  # truncation costs no score, so the limit is not at fault
    else:
        pairs = [(scores[0], cut[0]), (run.ends("score")[1], run.ends(name)[1])] if scores and not ended else []
        unharmed = any(paid_though_cut(*pair) for pair in pairs)
    never = len(more) >= 10 and min(run.values(name)) > 0.98  # no completion ever ends
    mends = run.trend(name) < 0 < run.trend("score")
    if mends or (unharmed and not never) or (share < 0.5 and run.learns()) or (name == "limit" and run.is_solved()):
        return None
    text = f"{share:.0%} are cut in the first steps by the limit{f' of {limit:g} tokens' if limit else ''}"
    facts = [run.fact(name, text, min(run.series[name]))]
    if ended:
        without = [t for t in ended if not t.has_gold()]
        text = f"{len(ended)} logged completions stop at the limit, {len(without)} without their answer"
        facts.append(shown(without or ended, text))
    return Evidence(CERTAIN if share >= 0.5 or ended else LIKELY + 0.15, facts)


@cause(
    explains=FLAT,
    change="easier prompts, partial credit, or a warm start (scripts/warm_start.py)",
    source="Wilson's interval; groups alike with p^G + (1 - p)^G",
    decide_with=TRY_MODEL,
)
def too_hard(run: LoggedRun) -> Evidence | None:
    """The prompts are too hard for this model: no completion is right, so nothing can be reinforced."""
    rate = pass_rate(run, steps=10**9)
    if not rate or rate[0] > 0.002 or rate[2] > 0.03:
        return None
    text = "{} passes {:.2%} of all completions (95 %: {:.2%} to {:.2%})".format(run.answer_part()[0], *rate)
    facts = [run.fact(run.answer_series(), text, min(run.steps()))]
    known = [t for t in run.texts if t.gold and t.score is not None]
    without = [t for t in known if not t.has_gold()]
    if len(known) >= 8 and len(without) >= 0.9 * len(known):
        text = f"{len(without)} of {len(known)} logged completions do not hold the gold answer"
        return Evidence(CERTAIN + 0.01, [*facts, shown(without, text)])
    return Evidence(LIKELY - 0.2 if known else LIKELY, facts)


@cause(
    explains=f"{FLAT} entropy_fell kl_high memorised_prompts",
    change="harder prompts, or stop: these have nothing left to teach",
    source="Wilson's interval of the pass rate",
    decide_with=TRY_MODEL,
)
def too_easy(run: LoggedRun) -> Evidence | None:
    """The prompts are too easy: nearly every completion is right from the start, so groups score alike."""
    rate, held_out, (right, wrong) = pass_rate(run, steps=3), run.early("held_out", 1), scores_by_answer(run.texts)
    least = 0.8 if held_out and SOLVED <= held_out[0] <= 1 else SOLVED
    paid_though_wrong = len(wrong) > 0.4 * len([*right, *wrong])  # then the reward is at fault
    if not rate or rate[0] < least or (held_out and held_out[0] < 0.9) or paid_though_wrong:
        return None
    beside = f", {held_out[0]:.3g} held out" if held_out else ""
    text = f"{run.answer_part()[0]} is {rate[0]:.3g} in the first steps{beside}"
    fact = run.fact(run.answer_series(), text, min(run.steps()))
    return Evidence(CERTAIN + 0.02 if len(right) >= 4 else LIKELY + 0.1, [fact])


@cause(
    explains=FLAT,
    change="raise {group_size}; keep prompts that the model solves now and then (dynamic sampling), or partial credit",
    source="p^G + (1 - p)^G; DAPO (Yu 2025), section 3.2",
    decide_with=TRY_MODEL,
)
def too_sparse(run: LoggedRun) -> Evidence | None:
    """Right answers are too rare for the group: most groups have none, so most of a batch teaches nothing."""
    rate, size, alike = pass_rate(run, steps=20), run.number("group_size"), run.early("zero_std", 20)
    group = int(size or 8)
    if not rate or not 0.002 < rate[0] < 0.12 or group == 1 or not (alike or size):
        return None
    expected = forecast(rate[0], group)
    share = sum(alike) / len(alike) if alike else expected
    if share < 0.6 or share < expected - 0.15 or run.learns():
        return None
    enough = next((2**i for i in range(1, 10) if forecast(rate[0], 2**i) < 0.5), 512)
    text = f"pass rate {rate[0]:.2%}: {expected:.0%} of groups of {group} are all alike by forecast"
    text += f", {share:.0%} were"
    if enough > group:
        text += f"; groups of {enough} would bring it to {forecast(rate[0], enough):.0%}"
    fact = run.fact("zero_std" if alike else "score", text, min(run.steps()))
    return Evidence(CERTAIN if alike and size else LIKELY + 0.1, [fact])


@cause(
    explains=f"{FLAT} reward_ignores_answer too_easy too_hard entropy_fell memorised_prompts",
    change="score what differs within a group; middling prompts; {group_size} 8 or more; show the form of full marks",
    source="definition of a group's advantage; p^G + (1 - p)^G",
    decide_with=TRY_MODEL,
)
def no_group_variance(run: LoggedRun) -> Evidence | None:
    """Groups have no variance: prompts are always or never solved, or the score depends on the prompt alone."""
    if run.number("group_size") == 1 and run.settings.get("grouped"):
        return Evidence(CERTAIN, [run.fact("score", "the group has 1 completion: nothing to compare it with", 1)])
    groups = groups_of_one_prompt([t for t in run.texts if t.score is not None])
    several = [group for group in groups if len({t.completion for t in group}) > 2]
    spreads = [max(t.score for t in group) - min(t.score for t in group) for group in several]
    if len(several) >= 5 and max(spreads) <= 1e-6 and len({round(group[0].score, 6) for group in several}) > 2:
        text = f"different completions of one prompt score alike, in all {len(several)} logged groups"
        return Evidence(CERTAIN + 0.06, [shown(several[0], text)])
    equal, scores, spreads = run.early("zero_std", 20), run.early("score"), run.part_spreads()
    share, greedy = sum(equal) / max(1, len(equal)), near_greedy_sampling.test(run)
    if run.is_constant() or run.is_solved() or share < 0.8 or len(equal) < (1 if any(spreads) else 3):
        return None
    if greedy and greedy.strength > SAME_LOG:
        return None
    text, between = alike_at_pass_rate(run, equal), max(spreads, default=0.0)
    between = between or max(scores, default=0.0) - min(scores, default=0.0)
    if not text and (pass_rate(run) or between <= 1e-6):
        return None
    text = text or f"{share:.0%} of the groups score all alike while scores differ by {between:.3g} between prompts"
    return Evidence(CERTAIN + 0.02 if not greedy else SAME_LOG, [run.fact("zero_std", text, min(run.steps()))])


GROUP_CAUSES = (near_greedy_sampling, never_ends, limit_too_short, too_hard, too_easy, too_sparse, no_group_variance)


# ----------------------------------------------------------------------- rewards (src/parts/reading/causes/rewards.py)

READS_GOLD = re.compile(r"\b(answers?|golds?|targets?|solutions?|ground_truths?|labels?|expected|references?)\b *[,)=]")
OTHER_ROW = re.compile(r"\b(answers?|golds?|targets?|solutions?|ground_truth|labels?)\[(\d+|-1|::-1)\]")


def unpaid_with_gold(texts: list[Text]) -> list[Text]:
    """Completions that contain their gold answer but are not paid, if most of those that contain it are not.

    [] if about as many contain another row's gold answer, or if a quarter of those with their gold answer is paid.
    """
    known = [t for t in early_texts(texts) if t.gold and t.pay is not None]
    lowest = min((t.pay for t in known), default=0.0)  # the pay of a wrong answer
    if lowest > 1e-9 and max(t.pay for t in known) - lowest <= 1e-9:
        return []  # all are paid
    holders = [t for t in known if t.has_gold()]
    unpaid = [t for t in holders if t.pay <= lowest + 1e-9]
    golds = [t.gold for t in known]
    pairs = zip(known, golds[len(golds) // 2 :] + golds[: len(golds) // 2], strict=True)
    others = [t.has_gold(gold) for t, gold in pairs if gold != t.gold]
    chance = len(known) * sum(others) / max(1, len(others))
    return unpaid if len(unpaid) >= max(chance + 3 * math.sqrt(chance) + 3, 0.75 * len(holders)) else []


def marks_with_gold(texts: list[Text]) -> set[str]:
    """Answer marks in which completions have their gold answer."""
    return {mark for t in texts for mark, answer in marked_answers(t.completion) if holds(answer, t.gold)}


def hardly_paid(run: LoggedRun) -> dict[str, Evidence]:
    """{cause: evidence} if the log alone shows that answers are hardly ever paid.

    If a format part is paid, or an answer now and then, the form is right: suspect the gold answers.
    """
    (name, means), rate = run.answer_part(), pass_rate(run, steps=10**9)
    spreads = run.series.keys() & {"score_std", "zero_std", "score_max"}
    formed = [(part, late) for part in filter(is_format, run.parts()) if (late := run.ends(f"part:{part}")[1]) >= 0.8]
    never = len(means) >= 3 and max(map(abs, means)) <= 0.01 and spreads
    rare = formed and rate and 0 < rate[0] < rate[2] <= 0.03 and trend(means) <= 0
    if run.texts or run.reward_source or not (rare or never):
        return {}
    paid = f"{rate[0]:.2%} of all completions" if rare else "next to nothing at any step"
    facts = [run.fact(run.answer_series(), f"{name} pays {paid}, and the log does not show why")]
    form = [run.fact(f"part:{part}", f"{part} is {late:.3g}, so the form is right") for part, late in formed[:1]]
    gold = {"gold_mismatch": Evidence(LIKELY + (0.12 if rare else 0.05), facts + form)}
    return gold if rare else gold | {"answer_form": Evidence(LIKELY + (0.04 if form else 0.06), facts)}


def unpaid_answers(run: LoggedRun) -> dict[str, Evidence]:
    """{cause: evidence} if right answers are not paid: the reward reads another form, or compares them wrongly."""
    unpaid, reads = unpaid_with_gold(run.texts), source_marks(run.reward_source)
    counts = Counter(mark for text in run.texts for mark in source_marks(text.prompt))
    asks, read = {mark for mark, count in counts.items() if count * 2 > len(run.texts)}, ", ".join(sorted(reads))
    text = f"prompts ask for {', '.join(sorted(asks))}, the reward reads {read}"
    other = [Fact(text, run.reward_file)] if reads and asks and not reads & asks else []
    if not unpaid and other and max(run.early("score"), default=1.0) <= 0.05:
        return {"answer_form": Evidence(LIKELY, other)}
    if not unpaid:
        return hardly_paid(run)
    used, text = marks_with_gold(unpaid), f"{len(unpaid)} unpaid completions hold the gold answer"
    if used & reads:
        return {"gold_mismatch": Evidence(CERTAIN + 0.05, [shown(unpaid, f"{text} where the reward looks")])}
    if reads:
        where = f", marked by {', '.join(sorted(used)) or 'nothing'}; the reward reads {read}"
        return {"answer_form": Evidence(CERTAIN + 0.05, [shown(unpaid, text + where), *other])}
    fact = shown(unpaid, text)
    return {"answer_form": Evidence(LIKELY + 0.1, [fact]), "gold_mismatch": Evidence(LIKELY, [fact])}


@cause(
    explains=FALSE,
    change="ask for the reward's format in the prompt, or have the reward read that of the completions",
    source="counting, against gold answers of other rows; open-r1#255, verl#2150",
    decide_with=TRY_REWARD,
)
def answer_form(run: LoggedRun) -> Evidence | None:
    """The reward expects another answer format, so right answers score nothing."""
    return unpaid_answers(run).get("answer_form")


def shifted_gold(run: LoggedRun) -> Fact | None:
    """A fact if completions state the gold answers of rows at a constant offset in the data."""
    places, golds, votes = {prompt: i for i, prompt in enumerate(run.golds)}, list(run.golds.values()), Counter()
    reach = min(60, (len(golds) - 1) // 2)  # largest offset; no row is reached in both directions
    train = list({(t.prompt, t.completion): t for t in run.texts if t.prompt in places}.values())
    for t in train if len(golds) >= 20 else ():
        place = places[t.prompt]
        answer = stated_answer(t.completion, golds[place])
        votes.update(k for k in range(-reach, reach + 1) if golds[(place + k) % len(golds)] == answer)
    (best, count), (_, second) = (votes.most_common(2) + [(0, 0)] * 2)[:2]
    if not best or count < max(4, 2 * second, 3 * votes[0], 0.2 * len(train)):
        return None
    return shown(train, f"{count} of {len(train)} completions state the gold answer of the row {best:+d} places away")


@cause(
    explains=f"{FALSE} noisy_reward other_eval_task inverted_reward",
    change="compare texts with texts (str() on both sides); print prompt, gold and extracted answer of ten rows",
    source="counting, against gold answers of other rows",
    decide_with=TRY_REWARD,
)
def gold_mismatch(run: LoggedRun) -> Evidence | None:
    """Answers are compared with the wrong gold: a number with a text, another row's gold, a wrong column."""
    shift, other = shifted_gold(run), OTHER_ROW.search(run.reward_source)
    train = [t for t in run.texts if t.kind == "train" and t.gold]
    golds, prompts = {t.gold for t in train}, {t.prompt for t in train}
    if shift:
        return Evidence(CERTAIN + 0.08, [shift])
    if other:
        text = f"the reward compares with {other[0]}, which is not the completion's row"
        return Evidence(CERTAIN + 0.08, [Fact(text, run.reward_file)])
    if len(prompts) >= 8 and len(golds) == 1:
        return Evidence(CERTAIN, [shown(train, f"{len(prompts)} prompts have the same gold answer, {min(golds)!r}")])
    return unpaid_answers(run).get("gold_mismatch")


def is_read(function: ast.FunctionDef, name: str) -> bool:
    """Whether a function reads a parameter, and not only counts it."""
    inside = [*ast.walk(function)]
    idle = [node.iter for node in inside if isinstance(node, ast.comprehension) and ast.unparse(node.target) == "_"]
    idle += [x for node in inside if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" for x in node.args]
    counted = {leaf for node in idle for leaf in ast.walk(node)}
    return any(isinstance(node, ast.Name) and node.id == name and node not in counted for node in inside)


def placeholder(source: str) -> str:
    """Why a reward's source may give constant scores: it ignores completions or turns exceptions into scores; or ""."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return ""
    for function in [node for node in nodes if isinstance(node, ast.FunctionDef)]:
        given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} & COMPLETIONS
        if given and not any(is_read(function, name) for name in given):
            return f"{function.name} never reads its {min(given)}"
    caught = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    if any(not isinstance(node.body[-1], ast.Raise) for node in caught):
        return "the reward turns an exception into a score"
    return ""


@cause(
    explains=f"{FALSE} part_dies answer_form gold_mismatch",
    change="have {reward} read the completion and let exceptions end the run; run scripts/reward_preflight.py",
    source="definition: equal scores give advantage 0; verl#3024",
    decide_with=TRY_REWARD,
)
def constant_reward(run: LoggedRun) -> Evidence | None:
    """Every completion gets the same score: a placeholder reward, or an exception turned into a score."""
    (name, means), scores, spreads = run.answer_part(), run.values("score"), run.spreads()
    if len(run.texts) >= 8 and all(t.unscored for t in run.texts):
        text = f"the reward gave None for all {len(run.texts)} logged completions: a `return` may be missing"
        return Evidence(CERTAIN + 0.09, [shown(run.texts, text)])
    seen, why, constant = means + run.values(f"held_out_part:{name}"), placeholder(run.reward_source), run.is_constant()
    part = len(run.parts()) > 1 and len(seen) >= 3 and max(seen) - min(seen) < 1e-9
    # in few steps, zeros may be wrong answers; TRL's score_std of 0 does not exclude differences between prompts
    few = 0 < len(scores) < 3 and max(spreads, default=1) <= 1e-6 and not any(run.part_spreads())
    few = few and (run.ends("score")[1] or why)
    solved = run.is_solved() and not (constant and max(spreads[:3], default=1) <= 1e-6)
    if not (constant or few or part) or solved:
        return None
    level, (right, wrong) = means[-1] if part else run.ends("score")[1], scores_by_answer(early_texts(run.texts))
    series = f"part:{name}" if part else "score_std" if "score_std" in run.series else "score"
    facts = [run.fact(series, f"{name if part else 'every completion'} scored {level:.4g} at every step")]
    if why:
        facts.append(Fact(why, run.reward_file))
        return Evidence(CERTAIN + 0.07 if right or "exception" not in why else CERTAIN, facts)
    if right and wrong and not part:
        examples = [t for t in run.texts if t.right][:1] + [t for t in run.texts if t.right is False][:2]
        facts.append(shown(examples, f"{len(right)} right and {len(wrong)} wrong completions are paid alike"))
    zero, full = min(abs(level), abs(level + 1)) <= 1e-9, abs(level - 1) <= 1e-9  # usual scores of wrong, right answers
    # it cannot be that all answers were wrong, or all right
    if not zero and (not full or (wrong and not part)):
        return Evidence(CERTAIN + 0.05, facts)
    if zero and wrong and not right:  # all wrong
        return Evidence(LIKELY - 0.15, facts)
    return Evidence(LIKELY + (0.14 if full and run.batch(len(scores)) >= 256 else 0.02), facts)


def separation(right: list[float], wrong: list[float]) -> tuple[float, float, str]:
    """(difference of the mean scores of right and wrong completions, its standard error, text)."""
    means = statistics.fmean(right), statistics.fmean(wrong)
    least = max(statistics.pvariance([*right, *wrong]) * 0.25, 1e-18)  # assume some scatter in each class
    errors = [max(statistics.variance(x) if len(x) > 1 else 0.0, least) / len(x) for x in (right, wrong)]
    text = f"{len(right)} right completions score {means[0]:.3g}, {len(wrong)} wrong ones {means[1]:.3g}"
    return means[0] - means[1], math.sqrt(sum(errors)), text


def best_paid_wrong(texts: list[Text]) -> list[Text]:
    return sorted((t for t in texts if t.right is False and t.score is not None), key=lambda t: -t.score)


def better_when_vague(run: LoggedRun) -> Fact | None:
    """A fact if a single score rises while completions get shorter and more random; right answers get more certain."""
    names, cut = ("score", "length", "entropy"), statistics.median(run.early("truncated", 3) or [0.0])
    if len(run.parts()) > 1 or cut > 0.1 or not all(map(run.values, names)):  # if cut, it may learn to end
        return None
    (begin, score), (first, last), (low, high) = (
        (statistics.median(run.early(name, 3)), run.ends(name)[1]) for name in names
    )
    along = min(run.correlation("score", "entropy"), -run.correlation("score", "length"))
    if score <= begin or last > 0.85 * first or high < 1.3 * low or along < 0.5:
        return None
    text = f"the score rises while {run.name('length')} goes from {first:.3g} to {last:.3g}"
    return run.fact("entropy", f"{text} and {run.name('entropy')} from {low:.3g} to {high:.3g}")


@cause(
    explains=f"{FALSE} limit_too_short part_dies gold_mismatch answer_form",
    change="flip the sign of {reward}, then restart from the initial model",
    source="scores of right and wrong completions, Welch's t",
    decide_with=TRY_REWARD,
    breaks=True,
)
def inverted_reward(run: LoggedRun) -> Evidence | None:
    """The reward is inverted: wrong answers score higher than right ones."""
    right, wrong = scores_by_answer(early_texts(run.texts))
    if min(len(right), len(wrong)) < 3:
        vague = None if right or wrong else better_when_vague(run)
        return Evidence(LIKELY + 0.1, [vague]) if vague else None
    difference, error, text = separation(right, wrong)
    examples = best_paid_wrong(run.texts)[:2] + [t for t in run.texts if t.right][:1]
    lowest = sum(pay <= min(right) + 1e-9 for pay in right)
    # all of the lowest paid are right: the probability that they are by chance
    chance = math.comb(len(right), lowest) / math.comb(len(right) + len(wrong), lowest)
    apart = lowest >= 5 and min(right) < min(wrong) - 1e-9 and chance < 0.01
    inverted = difference < 0 and (apart or difference < -4 * error)
    return Evidence(CERTAIN + 0.06, [shown(examples, text)], since=1) if inverted else None


@cause(
    explains=f"{STILL} {LOST} limit_too_short critic_useless too_easy memorised_prompts updates_too_large part_bought",
    change="pay for the right answer; form, length or style at most beside a right one",
    source="difference of mean scores with its interval, below half of what scores span",
    decide_with=TRY_REWARD,
    breaks=True,
)
def reward_ignores_answer(run: LoggedRun) -> Evidence | None:
    """The reward ignores the answer: right and wrong completions score alike."""
    parts, scores = run.parts(), [pay for pays in scores_by_answer(run.texts) for pay in pays]
    body = re.sub(r"(?s)\bdef \w+\(.*?\)( ->[^:]*)?:", "", run.reward_source)
    if parts and all(map(is_format, parts)) and not READS_GOLD.search(body):
        text = f"no part of the reward judges the answer: {', '.join(parts)}"
        return Evidence(LIKELY + 0.25, [run.fact(f"part:{next(iter(parts))}", text)], since=1)
    lowest, highest = min(scores, default=0.0), max(scores, default=0.0)
    formed = [t for t in some_of(run.texts) if marked_answers(t.completion)]
    # where there are enough: of the first ones, and in an answer's form, as a reward may pay nothing without it
    choices = [scores_by_answer(texts) for texts in (early_texts(formed), formed, early_texts(run.texts))]
    right, wrong = next((pays for pays in choices if min(map(len, pays)) >= 6), ([], []))
    if not right or highest - lowest <= 1e-9 or run.is_constant():
        return None
    difference, error, text = separation(right, wrong)
    scatter = math.sqrt((statistics.pvariance(right) + statistics.pvariance(wrong)) / 2)  # among equally right ones
    only_right = difference > 4 * error and (max(wrong) - lowest <= 1e-9 or difference > scatter)
    if only_right or difference + 2 * error > 0.5 * (highest - lowest) or difference < -4 * error:
        return None
    paid = payment_by_feature(run.texts)
    name = max(paid, key=lambda key: abs(paid[key]))
    text += f"; the score goes with {name} (r = {paid[name]:.2f})" if abs(paid[name]) > 0.5 else ""
    return Evidence(CERTAIN + 0.03, [shown(best_paid_wrong(run.texts), text)], since=1)


def pays_chance(run: LoggedRun) -> Fact | None:
    """A fact if groups differ but the score stays flat: although the policy moves, or whatever the prompt."""
    scores, spread, alike = run.values("score"), run.values("score_std"), run.values("zero_std")
    half, gain = len(scores) // 2, run.held_out_gain()
    rises = run.trend("score") > 0 or (gain and gain[1] > 0)
    if half < EARLY or not spread or statistics.fmean(alike or [0.0]) > 0.3 or rises or run.collapse():
        return None
    early, late = statistics.fmean(scores[:half]), statistics.fmean(scores[half:])
    if run.is_constant() or late - early > max(0.02, 0.1 * statistics.median(spread)):
        return None
    text, (first, last) = f"the score stays flat, {early:.3g} and {late:.3g} in its halves", run.ends("kl")
    if half >= TREND_STEPS and last >= max(0.05, 2 * first) and run.correlation("kl") >= 0.5:
        return run.fact("kl", f"{text}, while {run.name('kl')} goes from {first:.3g} to {last:.3g}")
    if share := alike_by_chance(run):
        return run.fact("zero_std", f"{text}, and {share} whatever the prompt")
    return None


@cause(
    explains=f"{FALSE} limit_too_short inverted_reward answer_form gold_mismatch",
    change="make {reward} deterministic: no random draw, a judge at temperature 0, no state between calls",
    source="definition: a reward is a function of prompt and completion",
    decide_with=TRY_REWARD,
)
def noisy_reward(run: LoggedRun) -> Evidence | None:
    """The reward is noise: the same completion of the same prompt gets different scores."""
    scored, groups = [t for t in run.texts if t.score is not None], []
    for same_step in (True, False):  # of one step where there are some
        if sum(map(len, groups)) < 6:
            groups = grouped(scored, lambda t, s=same_step: (s and t.step, t.kind, t.prompt, t.completion, t.gold))
            groups = [sorted(group, key=lambda t: t.score) for group in groups if len(group) > 1]
    differing = [group for group in groups if group[-1].score - group[0].score > 1e-6]
    if not scored and (idle := pays_chance(run)):
        return Evidence(LIKELY + 0.05, [idle])
    if len(differing) < 2:
        return None
    chance = statistics.fmean(statistics.variance(t.score for t in group) for group in groups)
    if chance < 0.1 * statistics.pvariance(t.score for t in scored):  # a judge's scatter, which averages out
        return None
    low, *_, high = max(differing, key=lambda group: group[-1].score - group[0].score)
    text = f"{len(differing)} of {len(groups)} repeated completions scored differently"
    return Evidence(CERTAIN + 0.07, [shown([low, high], f"{text}, one {low.score:.3g} and {high.score:.3g}")])


REWARD_CAUSES = (answer_form, gold_mismatch, constant_reward, inverted_reward, noisy_reward, reward_ignores_answer)


# ----------------------------------------------------------------------- updates (src/parts/reading/causes/updates.py)

LARGE = (("kl_step", 0.1, "KL of one step's update"), ("clip_frac", 0.3, "clipped share of tokens"))
FAR = 1.0  # KL to the reference, nats per token, beyond which a lost score is blamed on the updates
SLOW = 20  # steps in which a usual learning rate moves the policy by more than 1e-4 nats per token
HEAVY = 0.3  # KL weight, for scores of about 1, that is suspicious; 0 to 0.1 is usual
CRITIC_STEPS = 5  # first steps, always counted as the critic's warm-up, as its value head starts at 0


def large_steps(run: LoggedRun) -> list[Fact]:
    """Facts on updates: too large in three steps and a tenth of the run, far too large in one, or a lasting KL jump."""
    facts, kl, highest = [], run.points("kl"), -math.inf
    for name, limit, words in LARGE:
        points = run.points(name)
        high = [step for step, value in points if abs(value) > limit]
        most = max((value for _, value in points), key=abs, default=0.0)
        if name == "clip_frac" and 0 < max(map(abs, run.values("kl_step")), default=0.0) < 0.01:
            continue  # the clip range is narrow, as GSPO's
        if (len(high) >= 3 and len(high) >= 0.1 * len(points)) or (high and abs(most) > 10 * limit):
            text = f"{words} above {limit} in {len(high)} of {len(points)} steps, up to {most:.3g}"
            facts.append(run.fact(name, text, high[0]))
    for i, ((_, before), (step, after)) in enumerate(itertools.pairwise(kl if kl and abs(kl[0][1]) < 0.05 else [])):
        highest = max(highest, before)
        stays = min(value for _, value in kl[i + 1 : i + 5]) > 0.5  # else it is noise
        if stays and after - before > 0.5 and after > 2 * highest:
            text = f"KL to the reference went from {before:.3g} to {after:.3g} nats a token in one step"
            return [*facts, run.fact("kl", text, step)]
    return facts


def lost_at_once(run: LoggedRun) -> bool:
    """Whether the first updates destroyed nearly all of the training score, beyond chance or held out as well."""
    scores, held_out, gain = run.values("score"), run.values("held_out"), run.held_out_gain()
    if len(scores) < 2 or min(scores) < 0 or max(scores[1:]) > 0.02 * scores[0]:
        return False
    if gain is not None and gain[2] < 0 and held_out[-1] <= 0.02 * held_out[0]:
        return True
    size = int(run.number("group_size") or 1)  # the completions of a group count as one draw
    draws = [max(1, run.batch(count) // size) for count in (1, len(scores) - 1)]
    lost = share_gain((min(1.0, scores[0]), draws[0]), (0.0, draws[1]))
    later = [value for step, value in run.series.get("held_out", {}).items() if step > min(run.series["score"])]
    return lost[2] < 0 and max(later, default=0.0) <= 0.1 * scores[0]


@cause(
    explains=f"{FLAT} {LOST} part_dies limit_too_short sampler_mismatch stale_weights",
    change="lower {lr} by 3 to 10 times, or fewer updates a rollout ({epochs}); continue from an earlier checkpoint",
    source="Spinning Up's PPO stops at KL 0.015; limits 0.1 and 0.5 nats, 0.3 of tokens: our heuristic",
    breaks=True,
)
def updates_too_large(run: LoggedRun) -> Evidence | None:
    """Updates are too large: the policy leaves the region that its samples cover."""
    facts, lost, at_once, points = large_steps(run), run.collapse(), lost_at_once(run), run.points("score")
    if run.learns() and not lost and not at_once:
        return None
    if facts and run.values("lr"):
        facts.append(run.fact("lr", f"the learning rate is {max(run.values('lr')):.3g}"))
    if not lost and not at_once:
        return Evidence(CERTAIN + 0.04 if len(facts) > 2 else LIKELY + 0.2, facts) if facts else None
    begin, end, step = lost or (points[0][1], points[-1][1], points[1][0])
    if facts:
        return Evidence(CERTAIN + 0.04, facts, min(step, *(f.step for f in facts if f.step is not None)))
    text = f"the score fell from {begin:.3g} to {end:.3g}; half of it was lost by step {step}"
    facts, kl = [run.fact("score", text, step)], run.ends("kl")[1]
    if kl > FAR:
        facts.append(run.fact("kl", f"KL to the reference ends at {kl:.3g} nats a token"))
    return Evidence(CERTAIN + 0.01 if at_once or kl > FAR else LIKELY + 0.1, facts, step)


def is_warming_up(run: LoggedRun) -> bool:
    """Whether the learning rate still rises at the log's end, so that the policy need not move yet."""
    return all(after > before for before, after in itertools.pairwise(run.values("lr") or [1, 0]))


def rate_fact(run: LoggedRun) -> Fact | None:
    """A fact if the rate is 0 or far too low, the warm-up as long as the run, or gradients are clipped to nothing."""
    rates, steps, warmup = run.values("lr"), run.number("steps") or 0, run.number("warmup") or 0
    highest_logged, clip = max(rates, default=math.inf), run.number("grad_clip") or 1
    highest = min(run.number("lr") or math.inf, math.inf if is_warming_up(run) else highest_logged)
    rounded = "bf" in str(run.settings.get("precision", "")) and not run.config.get("bf16")
    off = [step for step, rate in run.points("lr") if rate == 0]
    if len(rates) >= 2 and len(off) >= min(len(rates), len(rates) // 2 + 2):
        return run.fact("lr", f"the learning rate is 0 at {len(off)} of {len(rates)} steps", off[0])
    if warmup > 1 and warmup >= max(steps, *run.steps(), 1) and steps > 0:
        return Fact(f"the warm-up takes {warmup:g} steps, the run {steps:g}", "warmup")
    if len(rates) >= 5 and is_warming_up(run):
        *_, before, last = run.steps()
        if last + (last - before) > steps > 0:
            return run.fact("lr", f"the learning rate still rises at the log's last step; it is {rates[-1]:.3g} there")
    if 0 < clip < 1e-6:
        return Fact(f"gradients are clipped to {clip:g}", "max_grad_norm")
    if highest < 2e-8:
        return run.fact("lr", f"the highest learning rate is {highest:.3g}")
    if rounded and run.trainer != "ppo_train" and highest <= 5e-6:
        return Fact(f"weights are kept in bfloat16 and the learning rate is {highest:.3g}", "dtype")
    return None


def still_figures(run: LoggedRun, critic: float) -> list[Fact]:
    """Facts on metrics which show that the policy has not moved although scores differ."""
    start = math.inf if is_warming_up(run) else critic + max(run.number("warmup") or 0, 0)
    kl, entropy = ([value for step, value in run.points(name) if step > start] for name in ("kl", "entropy"))
    alike, spread, scores = run.series.get("zero_std", {}), run.series.get("score_std", {}), run.values("score")
    varied = max(scores, default=0.0) - min(scores, default=0.0)
    # a log entry over several steps has the last one's norm, so most of its groups must differ
    differ = {step for step in run.steps() if alike.get(step, float(spread.get(step, varied) <= 1e-6)) < 0.7}
    norms = [value for step, value in run.points("grad_norm") if step > critic and step in differ]
    first, last = ends(entropy) if len(entropy) >= SLOW else (0.0, math.inf)
    checks = (
        ("kl", len(kl) >= 3 and max(map(abs, kl[1:])) < (1e-4 if len(kl) >= SLOW else 1e-7), "stays at 0"),
        ("grad_norm", len(norms) >= 2 and max(norms) < 1e-9, "is 0 although scores differ"),
        ("entropy", not kl and abs(last - first) < 0.01 * abs(first), f"stays at {last:.3g}"),
    )
    facts = [run.fact(name, f"{run.name(name)} {words}") for name, holds, words in checks if holds]
    if {fact.figure for fact in facts} == {run.name("entropy")} and max(entropy) - min(entropy) > 1e-5 * abs(first):
        return []  # the entropy varies; its ends are alike by chance
    return facts


@cause(
    explains=f"{STILL} critic_useless kl_holds_policy too_sparse part_bought",
    change="raise {lr} (LoRA: about ten times that of full training); a short warm-up; trainable float32 weights",
    source="definition; TRL lora_without_regret.md; a bf16 weight swallows updates below 1/256 of it",
    decide_with="python scripts/diagnose.py RUN --settings FILE",
)
def nothing_moves(run: LoggedRun) -> Evidence | None:
    """Nothing moves: scores differ, and the policy stays where it began."""
    critic, held_out, facts = run.number("critic_warmup") or 0, run.values("held_out"), []
    rises = any(trend(values) > 0 for values in (run.values("score"), *run.parts().values()))
    if max(run.steps(), default=0) <= critic or run.is_constant() or rises:
        return None  # or only the critic was trained yet
    rate, still = rate_fact(run), still_figures(run, critic)
    same = len(held_out) >= 3 and max(held_out) == min(held_out) and 0.02 < held_out[0] < 0.98
    if same:
        text = f"the held-out figure is {held_out[0]:.4g} at all {len(held_out)} evaluations"
        facts = [run.fact("held_out", text)]
    facts = [*([rate] if rate else []), *still, *facts]
    unsure = rate is not None and rate.figure == "dtype"  # rounding need not stop all weights
    decisive = any(fact.figure == run.name("grad_norm") for fact in still) or len(still) > 1
    if decisive or (rate and not unsure) or (same and (still or unsure)):
        return Evidence(CERTAIN + 0.03, facts)
    return Evidence(LIKELY + (0.25 if same or run.series.get("kl") else 0.0), facts) if facts else None


def weight_of_kl(run: LoggedRun) -> float:
    """The KL's weight by the settings, by the log, or by the loss's slope where it goes with the KL; else 0."""
    if (given := run.number("kl")) is not None:
        return given
    if run.values("kl_weight") or run.correlation("kl", "loss") <= 0.9:
        return max(run.values("kl_weight"), default=0.0)
    kl, loss = run.series["kl"], run.series["loss"]
    steps = [*(kl.keys() & loss.keys())]
    return statistics.linear_regression(*([series[step] for step in steps] for series in (kl, loss))).slope


@cause(
    explains="flat_score held_out_flat entropy_rose score_fell clipped "
    "nothing_moves critic_useless updates_too_large too_sparse",
    change="lower {kl} to 0.01 or 0",
    source="under a KL of weight b the optimum is the start's policy times exp(reward / b); 0.3: our heuristic",
)
def kl_holds_policy(run: LoggedRun) -> Evidence | None:
    """The KL term holds the policy where it began: moving costs more than the reward pays."""
    weight, late = weight_of_kl(run), run.ends("kl")[1]
    spreads = sorted(spread for spread in run.values("score_std") or [1.0] if spread > 1e-6) or [0.0]
    scale = max(spreads[9 * (len(spreads) - 1) // 10], 0.05)  # of steps whose groups are not alike; no single one
    light = run.config.get("teacher") or weight < HEAVY * min(1.0, 2 * scale)  # in a distillation the KL is the goal
    if light or late > 0.3 or run.is_constant() or run.learns():
        return None
    text = f"the KL's weight is {weight:.3g}, scores differ by {scale:.2g}"
    return Evidence(CERTAIN + 0.02 if weight >= 1 else LIKELY + 0.2, [run.fact("kl", text)])


@cause(
    explains=f"flat_score {LOST} updates_too_large nothing_moves part_bought overflow",
    change="a warm-up, more updates and another rate for the critic, no value clip; or a method without a critic",
    source="definition of explained variance; limit 0.03: our heuristic",
)
def critic_useless(run: LoggedRun) -> Evidence | None:
    """The critic predicts returns no better than a constant, so advantages are as noisy as without it."""
    variances = run.series.get("explained_variance", {})
    warmup = max(CRITIC_STEPS, int(run.number("critic_warmup") or 0))
    steps = [step for step in sorted(variances) if step > warmup]
    rate, lr = run.number("critic_lr"), run.number("lr") or max(run.values("lr"), default=0.0)
    facts, losses = [], run.early("value_loss", 20)
    if variances and rate and (rate < 1e-3 * lr or rate > 0.05):
        facts.append(Fact(f"the critic's learning rate is {rate:g}, the policy's {lr:g}", "critic_lr"))
    # a critic that predicts 0 has about the scores' mean square as its loss
    square = max(map(abs, [*run.values("score"), *run.values("score_std")]), default=math.inf) ** 2
    if len(losses) >= 3 and sorted(losses)[-3] > 30 * square:
        text = f"the value loss reaches {max(losses):.3g} in its first steps; scores are below "
        facts.append(run.fact("value_loss", f"{text}{math.sqrt(square):.3g}"))
    if facts:
        return Evidence(CERTAIN + 0.08, facts)
    if len(steps) < CRITIC_STEPS or run.is_constant():
        return None
    if max(abs(variances[step]) for step in steps) < 1e-5:
        text = f"explained variance is 0 at all steps from {steps[0]} on: the critic does not learn"
        return Evidence(CERTAIN + 0.03, [run.fact("explained_variance", text)])
    first, last = run.ends("score_std")
    alike = last < 0.25 * first or last < 0.05 * abs(run.ends("score")[1])  # nothing is left to explain
    if len(variances) < TREND_STEPS or alike or run.is_solved():
        return None
    steps = steps[-max(CRITIC_STEPS, len(steps) // 2) :]
    values = [variances[step] for step in steps]
    middle, error = statistics.median(values), 1.25 * noise(values) / math.sqrt(len(values))
    # near 0 is no fault in a run that learns: a short run ends before its critic is useful
    learns = middle > -0.1 and (run.gained() or run.trend("score") > 0)
    better = run.ends("explained_variance")[1] > -0.1 or len(variances) < 5 * TREND_STEPS
    better = better and run.trend("explained_variance") > 0
    if learns or better or middle + 2 * error > 0.03:
        return None
    text = f"explained variance {middle:.3g}, median of steps {steps[0]}-{steps[-1]}"
    sure = middle + 2 * error < 0  # near 0, the reward may be noise that no critic could predict
    return Evidence(CERTAIN if sure else LIKELY + 0.2, [run.fact("explained_variance", text, steps[-1])])


UPDATE_CAUSES = (updates_too_large, nothing_moves, kl_holds_policy, critic_useless)


# --------------------------------------------------------------------- outcomes (src/parts/reading/causes/outcomes.py)


def falls(run: LoggedRun, values: list[float]) -> bool:
    """Whether a series falls, loses most of its gain in the second half, or is a share that surely halved."""
    half, size = values[len(values) // 2 :], max(1, len(values) // 3)
    if trend(values) < 0 or (trend(half) < 0 and 2 * ends(half)[1] < ends(values)[0] + ends(half)[0]):
        return True
    shares = [(statistics.fmean(part), run.batch(size)) for part in (values[:size], values[-size:])]
    return 0 <= min(values) <= max(values) <= 1 and 2 * shares[1][0] < shares[0][0] and share_gain(*shares)[2] < 0


def ends_text(name: str, values: list[float]) -> str:
    return "{} went from {:.3g} to {:.3g}".format(name, *ends(values))


def rise_beside(run: LoggedRun) -> tuple[float, float]:
    """(rise of the score, what of it neither right answers nor the format explain), with weights of 1."""
    name, (first, last) = run.answer_part()[0], run.ends("score")
    rise = last - first if run.parts() else math.nan
    parts = [ends(values) for part, values in run.parts().items() if values and (part == name or is_format(part))]
    return rise, rise - sum(max(0.0, last - first) for first, last in parts)


def past_its_best(run: LoggedRun) -> bool:
    """Whether the held-out share fell from its best while the score rose, mostly beside right answers and format."""
    rise, beside = rise_beside(run)
    return rise > 0 and beside > 0.6 * rise and run.held_out_peak() is not None


def rising_parts(run: LoggedRun) -> list[str]:
    """Parts that rise, else format parts at their maximum, while correctness varies but falls or stays flat.

    In a few steps these are format parts that gain 0.3 or more.
    """
    name, part = run.answer_part()
    worse = falls(run, part) if part else False
    others = {other: values for other, values in run.parts().items() if other != name and values}
    if len(run.steps()) < TREND_STEPS:
        return [x for x, values in others.items() if worse and is_format(x) and values[-1] - values[0] >= 0.3]
    idle = worse or is_flat(part) or past_its_best(run)
    if not part or max(part) - min(part) < 1e-9 or ends(part)[0] >= SOLVED or not idle:
        return []
    full = [key for key, values in others.items() if is_format(key) and ends(values)[1] >= 0.9 * max(1.0, *values)]
    return [other for other, values in others.items() if trend(values) > 0] or full


def answers_explain(early: list[Text], late: list[Text]) -> bool:
    """Whether right answers, at what they were worth early, explain half of the rise in score; True without one."""
    right, wrong = ([t.score for t in early if bool(t.right) is kind] for kind in (True, False))
    worth = statistics.fmean(right) - statistics.fmean(wrong) if right and wrong else 0.0
    more = statistics.fmean(bool(t.right) for t in late) - len(right) / len(early)
    return worth * more >= (statistics.fmean(t.score for t in late) - statistics.fmean(t.score for t in early)) / 2


def paid_feature(run: LoggedRun) -> tuple[Fact | None, bool]:
    """(fact on a feature that goes with the score and moved to where it pays, whether it brought most of the rise).

    It did if it grew beyond what nine of ten right completions had early, while right answers explain less than half.
    """
    scored, moves = [t for t in run.texts if t.score is not None], []
    train = some_of([t for t in scored if t.kind == "train"])
    steps = sorted({t.step for t in train})
    if len(scored) < 16 or len(steps) < 2:
        return None, False
    paid, third = payment_by_feature(scored), max(1, len(steps) // 3)
    early, late = ([t for t in train if t.step in part] for part in (steps[:third], steps[-third:]))
    right = [t.completion for t in early if t.right]
    earned = len(right) < 8 or answers_explain(early, late)  # with fewer, what they need is not known
    for name in sorted(paid, key=lambda key: -abs(paid[key])):
        measure, r = FEATURES[name], paid[name]
        first, last = (statistics.fmean(measure(t.completion) for t in texts) for texts in (early, late))
        if abs(r) < 0.5 or math.copysign(1, r) * (last - first) <= 0.1 * max(abs(first), abs(last), 0.1):
            continue
        text = f"among equally right completions the score goes with {'less ' if r < 0 else ''}{name} "
        text += f"(r = {r:.2f}): {name} is {first:.3g}, then {last:.3g}"
        needed = sorted(map(measure, right))[9 * (len(right) - 1) // 10] if right else math.inf
        moves.append((r > 0 and last > 1.2 * needed and not earned, text))
    if not moves:
        return None, False
    bought, text = max(moves, key=lambda move: move[0])
    return shown(sorted(scored, key=lambda t: -t.score), text), bought


def paid_unfinished(run: LoggedRun) -> Fact | None:
    """A fact if truncated completions are paid: their share is at least mean score + truncated share - 1."""
    cut, (name, means) = run.values("truncated"), run.answer_part()
    highest = [t.score or 0.0 for t in run.texts] + run.values("score_max") + means
    held_out = run.values(f"held_out_part:{name}")  # a bought part pays on held-out prompts too
    (first, last), mean, (rise, beside) = ends(cut), ends(means)[1], rise_beside(run)
    if len(cut) < 3 or not means or (held_out and held_out[-1] < held_out[0] - GAIN) or last < max(0.2, first + 0.1):
        return None
    text = f"{last:.0%} are cut at the end"
    if rise > 0 and beside > 0.6 * rise:
        return run.fact("truncated", f"{text}; right answers and form explain {rise - beside:.2g} of the rise in score")
    text = f"{text} and {name} is {mean:.3g}, so at least {mean + last - 1:.0%} are cut and paid"
    return run.fact("truncated", text) if max(highest) <= 1 and paid_though_cut(mean, last) else None


@cause(
    explains=f"{FLAT} {LOST} limit_too_short memorised_prompts updates_too_large",
    change="pay the right answer, and form or length at most beside one; continue from the best checkpoint held out",
    source="Gao 2022, scaling laws for reward over-optimisation; limit r = 0.5: our heuristic",
    decide_with=TRY_REWARD,
    breaks=True,
)
def part_bought(run: LoggedRun) -> Evidence | None:
    """The policy buys one part of the reward at the cost of the answer."""
    (name, part), parts, held_out = run.answer_part(), run.parts(), run.held_out_gain()
    answers = right_gain(run.texts)
    truth = answers or held_out
    better = truth is not None and truth[0] > GAIN and truth[1] > -GAIN
    worse = (truth is not None and truth[2] < 0) or (len(parts) > 1 and falls(run, part)) or past_its_best(run)
    rising, (feature, bought), unfinished = rising_parts(run), paid_feature(run), paid_unfinished(run)
    scores, points = run.values("score"), run.values("held_out")
    few, rose, lower = len(run.steps()) < TREND_STEPS, run.trend("score") > 0, False
    first, last = run.ends("length")
    hollow = rising and run.trend("length") < 0 and last < 0.3 * first and ends(part)[1] < 0.2  # only the form is left
    hollow = hollow and not (truth and truth[0] > 0.1)
    if few:  # too short for a trend: the held-out metric must have fallen beyond its interval
        lower = held_out is not None and held_out[2] < -GAIN and len(points) > 2
        rose = bool(rising) or (lower and scores[:1] < scores[-1:])
    elif rose and run.trend("length") > 0 and last > 1.5 * first:  # its length grows with the score
        lower = run.held_out_peak() is not None
    judged = better and "/acc/" in run.name("held_out")  # verl's accuracy does not depend on the score
    if (few and not rose) or (better and not (worse or hollow or bought or lower) and (judged or not unfinished)):
        return None
    facts = [run.fact(f"part:{x}", ends_text(x, parts[x]), run.onset(f"part:{x}")) for x in rising[:2]]
    facts += [run.fact(run.answer_series(), ends_text(name, part))] if rising else []
    facts += [run.fact("length", f"{run.name('length')} went from {first:.3g} to {last:.3g}")] if hollow else []
    if lower and rose and not rising:
        text = f"{ends_text('the score', scores)}, the held-out figure from {points[0]:.3g} to {points[-1]:.3g}"
        facts.append(run.fact("held_out", text))
    facts += [unfinished] if unfinished else []
    facts += [feature] if bought or (feature and not (truth is None and trend(part) > 0)) else []
    lost = rose and answers is not None and answers[2] < 0
    if lost and not facts:
        text = "the score rose from {:.3g} to {:.3g}, the share of right logged completions fell by {:.2g}"
        facts.append(shown(best_paid_wrong(run.texts), text.format(*ends(scores), -answers[0])))
    sure = lost or hollow or bought or (rising and worse) or (feature and (worse or rising))
    sure = sure or (unfinished and not better and trend(part) <= 0)
    # answers got neither better nor worse; they may still follow while the other part rises
    settled = [x for x in rising if trend(parts[x][len(parts[x]) // 2 :]) <= 0]
    beside = unfinished or (rose and (lower or settled or (feature and truth is not None and truth[0] <= 0)))
    if not facts or not (sure or beside):
        return None
    since = run.onset("score") if scores else None
    return Evidence(CERTAIN + 0.02 if sure else LIKELY + 0.2, facts, since)


def dying_turn(run: LoggedRun) -> Evidence | None:
    """Evidence that a later turn's rewards vanish in the second half of logged conversations."""
    rows = [(row.get("step", 0), row["turn_rewards"]) for row in run.samples if row.get("turn_rewards")]
    steps = sorted({step for step, _ in rows})
    for turn in range(1, 4) if len(steps) > 1 else ():
        paid = [(step, values[turn]) for step, values in rows if len(values) > turn and values[turn] is not None]
        half = steps[len(steps) // 2]
        early, late = ([value for step, value in paid if (step >= half) is is_late] for is_late in (False, True))
        if min(len(early), len(late)) >= 6 and statistics.fmean(late) < 0.2 * statistics.fmean(early):
            before, after = statistics.fmean(early), statistics.fmean(late)
            text = f"turn {turn + 1} paid {before:.3g} in the first half and {after:.3g} in the second"
            return Evidence(LIKELY + 0.2, [shown([], text)], since=half)
    return None


@cause(
    explains="length_fell length_rose entropy_fell held_out_flat entropy_rose part_bought updates_too_large kl_high",
    change="weigh the part so that it is worth keeping; for turns, a baseline for each (--turn_baseline turn)",
    source="each part's own curve; references/environments.md, second attempts",
    breaks=True,
)
def part_dies(run: LoggedRun) -> Evidence | None:
    """One part of the reward, or one turn, dies while the whole rises."""
    correct, whole = run.answer_part()[0], run.values("score")
    if run.trend("score") < 0 or (whole and ends(whole)[1] < 0.5 * statistics.fmean(whole[:2])):
        return None
    for name, values in {} if run.trend(f"part:{correct}") < 0 else run.parts().items():
        if len(values) < 6:
            continue
        first, last = ends(values)
        first = max(first, statistics.fmean(values[:2]))  # it may die within the first steps
        died = first > 0.05 and last < 0.2 * first and max(values[-3:]) < 0.5 * first
        is_penalty = re.search("penal|punish", name, re.IGNORECASE)  # whose size some logs show: its fall is good
        if died and name != correct and trend(values) <= 0 and not is_penalty:
            step = run.onset(f"part:{name}")
            text = f"{name} went from {first:.3g} to {last:.3g} while {ends_text('the score', whole)}"
            return Evidence(CERTAIN + 0.05, [run.fact(f"part:{name}", text, step)], since=step)
    return dying_turn(run)


@cause(
    explains=f"{FLAT} entropy_fell kl_high length_fell length_rose too_easy other_eval_task updates_too_large",
    change="more distinct prompts, each seen a few times; keep the checkpoint with the best held-out figure",
    source="definition of a held-out set; gain held out below half of the gain in training",
    decide_with="python scripts/evaluation.py on the start and the end, on other prompts of the task",
    breaks=True,
)
def memorised_prompts(run: LoggedRun) -> Evidence | None:
    """The policy memorises a few prompts: the training score rises, the held-out figure does not."""
    gain, (name, part), held_out = run.held_out_gain(), run.answer_part(), run.values("held_out")
    train = [t for t in run.texts if t.kind == "train"]
    right, wrong = scores_by_answer(train)
    paid_though_wrong = min(len(right), len(wrong)) > 8 and statistics.fmean(wrong) > 0.5 * statistics.fmean(right)
    if not gain or len(part) < 6 or min(part) < 0 or max(part) > 1 or paid_though_wrong:
        return None
    if trend(part) < 0 or (trend(part) == 0 and gain[2] >= 0):  # no rise beyond chance, unless held-out surely fell
        return None
    (first, last), rose = ends(part), ends(part)[1] - ends(part)[0]
    start, rows = statistics.fmean(part[:2]), run.settings.get("rows")
    few = bool(rows) and rows <= 16  # which each step sees several times: their pass rate differs from the held-out one
    alike = few or start <= held_out[0] + 0.15 or min(run.series["held_out"]) > 3  # if both were measured at the start
    held_out_rose = gain[0] if few else gain[2]  # else its upper limit
    if rose < 0.1 or not alike or held_out_rose > 0.5 * rose or last < held_out[-1] + 0.15:
        return None
    text = f"{name} rose from {first:.3g} to {last:.3g} in training"
    facts = [run.fact("held_out", f"{text}, held out from {held_out[0]:.3g} to {held_out[-1]:.3g}")]
    drawn = {(t.step, t.prompt) for t in train}  # a prompt's completions at one step are one draw
    distinct = len({prompt for _, prompt in drawn})
    if rows and rows <= 128:
        facts.append(Fact(f"the training data have {rows} distinct prompts", "data"))
    elif len(drawn) >= 3 and distinct <= 0.7 * len(drawn):
        facts.append(shown(train, f"{len(drawn)} logged draws are of {distinct} distinct prompts"))
    points = run.points(run.answer_series())
    ahead = next((step for step, value in points if value > first + max(rose / 2, GAIN)), points[-1][0])
    alone = len(run.parts()) < 2 or run.values(f"held_out_part:{name}")  # training and held-out metrics are comparable
    same = bool(alone) and abs(start - held_out[0]) <= 0.15
    return Evidence(CERTAIN + 0.04 if len(facts) > 1 else LIKELY + 0.1 * same, facts, since=ahead)


def telling_words(prompts: list[str], others: list[str]) -> list[str]:
    """Words and signs (numbers as 0) that the other prompts lack, although one common task would make them likely."""
    one, two = (
        [{*re.findall(r"[a-z]+|\d|[^\w\s]", re.sub(r"\d+", "0", prompt.lower()))} for prompt in texts]
        for texts in (prompts, others)
    )
    counts = Counter(word for words in one for word in words if not any(word in other for other in two))
    chance = {  # probability that no other prompt has a word, by Laplace's rule of succession
        word: math.prod((len(one) - count + 1 + i) / (len(one) + 2 + i) for i in range(len(two)))
        for word, count in counts.items()
    }
    return sorted((word for word in chance if chance[word] < 0.01), key=chance.get)


def unlike_training(run: LoggedRun) -> Fact | None:
    """A fact if a 0/1 score is well above 0 in training but near 0 held out, from start to end."""
    (name, part), held_out, spread = run.answer_part(), run.values("held_out"), run.early("score_std", 1)
    alike = run.values(f"held_out_part:{name}")  # the same reward on held-out prompts
    held_out = alike or held_out
    if len(held_out) < 2 or len(part) < TREND_STEPS or min(part) < 0 or max(part) > 1:
        return None
    binary = spread and len(run.parts()) < 2 and abs(spread[0] - math.sqrt(part[0] * (1 - part[0]))) <= 0.05
    if not alike and not binary:
        return None  # the held-out share of full marks is not comparable
    if max(held_out) > 0.05 or wilson_interval(part[0] * run.batch(), run.batch())[0] < 0.2 or trend(part) < 0:
        return None
    text = f"{name} goes from {part[0]:.3g} to {ends(part)[1]:.3g} in training"
    return run.fact("held_out", f"{text} and stays at {max(held_out):.3g} held out")


@cause(
    explains="held_out_flat memorised_prompts part_bought gold_mismatch",
    change="hold out prompts of the task: python scripts/data_loader.py FILE --split 0.1 --out part.jsonl",
    source="definition of a held-out set",
)
def other_eval_task(run: LoggedRun) -> Evidence | None:
    """The held-out prompts do not measure the task: they are of another task, or are also trained on."""
    rows = run.columns.get("eval/rows", {})
    trained = run.columns.get("eval/trained_rows", {})
    trained = {step: count for step, count in trained.items() if count > 0.05 * rows.get(step, 0)}
    same = run.settings.get("data") and run.settings.get("data") == run.settings.get("eval_data")
    if trained or (same and run.values("held_out")):
        text = "the training file is the evaluation file too"
        if trained:
            step, count = next(iter(trained.items()))
            of = f" of {rows[step]:.0f}" if step in rows else ""
            text = f"{count:.0f}{of} evaluation prompts also occur in training"
        return Evidence(CERTAIN + 0.05, [run.fact("held_out", f"{text}; the accuracy is inflated")])
    unlike = unlike_training(run)
    train, held_out = (sorted({t.prompt for t in run.texts if t.kind == kind}) for kind in ("train", "eval"))
    name, part = run.answer_part()
    alike = run.values(f"held_out_part:{name}")  # the same reward on held-out prompts
    follows = len(alike) > 1 and len(part) > 1 and alike[-1] - alike[0] > 0.5 * (ends(part)[1] - part[0]) > 0.02
    few = len(train) < 2 or len(held_out) < 4 or run.gained() or follows
    words = ([], []) if few else (telling_words(train, held_out), telling_words(held_out, train))
    if not all(words):
        return Evidence(CERTAIN + 0.02, [unlike]) if unlike else None
    examples = [next(t for t in run.texts if t.kind == kind) for kind in ("train", "eval")]
    fact = shown(examples, "training prompts have {}, held-out ones {}".format(*(" ".join(x[:6]) for x in words)))
    sure = unlike or (run.trend("score") > 0 and len(train) > 3)
    return Evidence(CERTAIN + 0.04 if sure else LIKELY + 0.1, [*filter(None, [unlike]), fact])


OUTCOME_CAUSES = (part_bought, part_dies, memorised_prompts, other_eval_task)


# ----------------------------------------------------------------------- ranking (src/parts/reading/causes/ranking.py)

CAUSES = (*MACHINERY_CAUSES, *GROUP_CAUSES, *REWARD_CAUSES, *UPDATE_CAUSES, *OUTCOME_CAUSES)
LEARNED, NOT_LEARNED, BROKEN, TOO_SHORT, OPEN = "learned", "did not learn", "broken", "too short", "no verdict"
MANY = 50  # a run with fewer steps may be called too short
SIDE_CAUSES = ("critic_useless",)  # a run may learn despite it
MOVES = (  # sign, series, limit of last / first stretch, least distance between them
    ("length_rose", "length", 1.5, 0.0),
    ("length_fell", "length", 0.5, 0.0),
    ("entropy_fell", "entropy", 0.2, 0.01),
    ("entropy_rose", "entropy", 2.0, 0.2),
)
LEVELS = (  # sign, series, limit that its last stretch exceeds, text
    ("equal_groups", "zero_std", 0.8 - 1e-9, "{:.0%} of the groups score all alike"),
    ("truncated", "truncated", 0.2 - 1e-9, "{:.0%} of the completions are cut"),
    ("kl_high", "kl", 0.3, "{name} is {:.3g} nats a token"),
    ("clipped", "clip_frac", 0.3, "{:.0%} of the tokens are clipped"),
)


def signs(run: LoggedRun) -> dict[str, Fact]:
    """Signs that metrics show, {name: fact}. They need a cause to explain them and carry no advice."""
    seen, scores, lost, held_out = {}, run.values("score"), run.collapse(), run.values("held_out")
    solved, gained = run.is_solved(), run.gained()
    if run.is_constant():
        text = f"all completions of nearly every step scored {run.ends('score')[1]:.4g}"
        seen["constant_scores"] = run.fact("score", text)
    elif lost:
        seen["score_fell"] = run.fact("score", f"the score fell from {lost[0]:.3g} to {lost[1]:.3g}", lost[2])
    elif is_flat(scores) and not solved:
        seen["flat_score"] = run.fact("score", f"the score is flat over {len(scores)} steps")
    if len(held_out) >= 2 and not gained and not solved:
        text, peak = f"the held-out figure went from {held_out[0]:.3g} to {held_out[-1]:.3g}", run.held_out_peak()
        if peak is not None and max(held_out) > held_out[0]:
            text += f" (best: {max(held_out):.3g} at step {peak})"
        if run.trend("score") > 0:
            text += ", while the score went from {:.3g} to {:.3g}".format(*run.ends("score"))
        seen["held_out_flat"] = run.fact("held_out", text)
    for name, series, limit, words in LEVELS:
        late = run.ends(series)[1]
        if late > limit and not {"equal_groups": solved, "kl_high": gained}.get(name):
            seen[name] = run.fact(series, words.format(late, name=run.name(series)))
    for name, series, share, least in MOVES:
        (first, last), way = run.ends(series), 1 if share > 1 else -1
        usual = gained and (held_out or series != "length") and last > 0.01 * first  # without held-out, length may pay
        usual = usual or (name == "entropy_fell" and (solved or "kl/teacher" in run.columns))
        if run.trend(series) == way and not usual and way * (last - share * first) > 0 and way * (last - first) > least:
            seen[name] = run.fact(series, f"{run.name(series)} went from {first:.4g} to {last:.4g}")
    return seen


def ranked_causes(run: LoggedRun, seen: dict[str, Fact]) -> list[tuple[Cause, Evidence]]:
    """At most two root causes, which no other cause explains; sorted by strength and by how many signs they explain."""
    candidates = [(cause, evidence) for cause in CAUSES if (evidence := cause.evidence(run))]
    candidates = [(cause, evidence) for cause, evidence in candidates if evidence.strength >= LIKELY - 0.2]

    def weight(pair: tuple[Cause, Evidence]) -> tuple:
        explained = sum(sign in seen for sign in pair[0].explains.split())
        return pair[1].strength >= CERTAIN, pair[1].strength + 0.01 * explained

    candidates.sort(key=weight, reverse=True)
    places = {cause.name: (-evidence.strength, place) for place, (cause, evidence) in enumerate(candidates)}

    def is_explained(cause: Cause, evidence: Evidence) -> bool:
        """Whether another cause explains this one; of two that explain each other, the stronger does."""
        others = [other for other, stronger in candidates if stronger.strength >= evidence.strength - 0.3]
        others = [other for other in others if cause.name in other.explains.split()]
        effects = cause.explains.split()
        return any(other.name not in effects or places[other.name] < places[cause.name] for other in others)

    roots = [pair for pair in candidates if not is_explained(*pair)]
    if not roots or roots[0][1].strength < LIKELY:
        return []
    first = roots[0][1].strength
    second = [pair for pair in roots[1:] if pair[1].strength >= (CERTAIN if first >= CERTAIN else first - 0.25)]
    return [roots[0], *second[:1]]


def judged_run(run: LoggedRun, causes: list[tuple[Cause, Evidence]], seen: dict[str, Fact]) -> tuple[str, int | None]:
    """(verdict, step from which on the run is broken or None)."""
    gain, lost = run.held_out_gain(), seen.get("score_fell")
    sure = [(cause, evidence) for cause, evidence in causes if evidence.strength >= CERTAIN]
    broken = [evidence.since for cause, evidence in sure if cause.breaks]
    if broken or lost:
        steps = [step for step in (*broken, lost and lost.step) if step is not None]
        return BROKEN, min(steps, default=min(run.steps(), default=1))
    if gain and gain[2] < 0 and gain[0] < -GAIN:
        peak = run.held_out_peak() or 0
        return BROKEN, min((step for step in run.series["held_out"] if step > peak), default=None)
    right = right_gain(run.texts)
    works = gain[1] > 0 if gain else trend(run.answer_part()[1]) > 0 and not (right and right[0] <= 0)
    if works and run.gained() and all(cause.name in SIDE_CAUSES for cause, _ in sure):
        return LEARNED, None
    hopeless = any(cause.name not in SIDE_CAUSES for cause, _ in sure)
    name, part = run.answer_part()
    form_first = not causes and run.trend("score") > 0 and len(part) < 2 * MANY  # correctness may still follow
    flat = is_flat(run.values("score")) or (names_correctness(name) and is_flat(part) and not form_first)
    stuck = gain and gain[2] < GAIN and len(run.steps()) >= 2 * TREND_STEPS
    open_ended = gain and gain[2] > 2 * GAIN  # it may have learned
    if hopeless or (flat and not open_ended) or stuck:
        return NOT_LEARNED, None
    steps = run.steps() or [0]
    if steps[-1] - steps[0] + 1 < MANY:
        return TOO_SHORT, None
    why = f"the held-out gain lies between {gain[1]:.2g} and {gain[2]:.2g}" if gain else "the log has no score"
    if part and not gain:
        chance = "samples show no more right answers" if trend(part) > 0 else "chance explains that"
        why = "{} went from {:.3g} to {:.3g}: {}".format(name, *ends(part), chance)
    run.remarks.append(f"no verdict, as {why}")
    return OPEN, None


def what_was_read(run: LoggedRun) -> tuple[list[str], list[str]]:
    """(data that the run left, data that would help a decision)."""
    texts, missing = run.texts, "samples with scores (samples.jsonl, log_completions=True, trainer.rollout_data_dir)"
    beside, source = run.settings_file or "beside the log", "the reward's source"
    scored, gold = any(t.score is not None for t in texts), any(t.gold for t in texts)
    read = (  # whether it exists, its name if so, how to provide it
        (run.steps(), f"{run.format}, {len(run.steps())} steps", ""),
        (run.series.get("score"), "", "the score under a known name: --columns reward=NAME"),
        (run.knows_settings(), f"settings ({beside})", "settings: --settings FILE"),
        (texts, f"{len(texts)} samples", missing),
        (scored or not texts, "", "scores of the samples, logged beside them"),
        (gold or not texts, "gold answers" * gold, "gold answers of the samples: --data FILE"),
        (run.reward_source, f"{source} ({run.reward_file})", f"{source}: --reward FILE.py:function"),
        (len(run.values("held_out")) > 1, "a held-out figure", "two held-out evaluations"),
        (run.series.keys() & {"score_std", "zero_std", "score_max"}, "", "the spread of scores of a step"),
    )
    return [name for there, name, _ in read if there and name], [name for there, _, name in read if name and not there]


def diagnose(run: LoggedRun) -> dict:
    """A run's verdict, causes and evidence, as plain data."""
    seen = signs(run)
    causes = ranked_causes(run, seen)
    verdict, since = judged_run(run, causes, seen)
    words = WORDS[run.trainer] | {"reward": run.answer_part()[0] if run.parts() else "NAME"}
    had, lacked = what_was_read(run)
    steps = run.steps() or [step for _, step, _ in run.bad]
    explained, reports = {name for cause, _ in causes for name in cause.explains.split()}, []
    for cause, evidence in causes:
        sure = evidence.strength >= CERTAIN
        reports.append(
            {
                "cause": cause.name,
                "certainty": "certain" if sure else "likely",
                "says": cause.says,
                "evidence": [asdict(fact) | {"samples": list(fact.samples)} for fact in evidence.facts],
                "explains": [seen[sign].text for sign in seen if sign in cause.explains.split()],
                "decide_with": None,
                "change": cause.change.format(**words),
                "source": cause.source,
            }
        )
        if cause.decide_with and (len(causes) > 1 or not sure):
            reports[-1]["decide_with"] = cause.decide_with.replace("RUN", run.path).format(**words)
    return {
        "path": run.path,
        "format": run.format,
        "trainer": run.trainer,
        "steps": [min(steps), max(steps)],
        "verdict": verdict,
        "since_step": since,
        "causes": reports,
        "unexplained": [fact.text for sign, fact in seen.items() if sign not in explained],
        "had": had,
        "lacked": lacked,
        "remarks": run.remarks,
    }


# ---------------------------------------------------------------------- rescoring (src/programs/diagnose/rescoring.py)

TRIAL = '''\
def trial():
    """Call the reward as the JSON on stdin says and print its scores; its own prints go to stderr."""
    import contextlib
    import inspect
    import json
    import sys

    given = json.load(sys.stdin)
    function = globals()[given["function"]]
    names = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())

    def called(columns):
        return function(**{key: value for key, value in columns.items() if takes_any or key in names})

    def sample_score(row):
        gold = row["columns"].get("ground_truth", row["gold"])
        texts = dict.fromkeys((row["own"], "completion", "solution_str"), row["text"]) | {"prompt": row["prompt"]}
        more = {"ground_truth": gold, "data_source": "", "extra_info": row["columns"]}
        value = called(row["columns"] | texts | more)
        return value["score"] if isinstance(value, dict) else value

    def scores(rows):
        if "completions" not in names:
            return [sample_score(row) for row in rows]
        columns = {key: [row["columns"].get(key) for row in rows] for row in rows for key in row["columns"]}
        texts = {f"{key}s": [row[key] for row in rows] for key in ("prompt", "completion")}
        return list(called(columns | texts))

    with contextlib.redirect_stdout(sys.stderr):
        batches = [scores(rows) for rows in given["calls"]]
    words = ["-" if value is None else f"{float(value):.4g}" for values in batches for value in values]
    print("=" + " ".join(words) + "=")


trial()
'''
SANDBOX = BUNDLE / "scripts" / "sandbox.py"
TRIED = 12  # samples of a trial, as the sandbox shows only about 200 printed characters
NONSENSE = "zxqv nothing of this kind"
GOLD_FORMS = ("{}", "#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "The answer is {}.")


def with_text(row: dict, text: str) -> dict:
    """The row with another completion."""
    chat = isinstance(row["prompt"], list)
    return row | {"text": text, "completion": [{"role": "assistant", "content": text}] if chat else text}


def trial_rows(run: LoggedRun) -> list[dict]:
    """Up to TRIED distinct logged samples, with their columns and those of their prompt in the data."""
    samples, rows = [sample for sample in run.samples if isinstance(sample.get("completion"), (str, list))], {}
    for text, sample in zip(run.texts, samples, strict=True):
        of_data = run.rows.get(text.prompt, {})
        known = of_data | sample | (sample.get("columns") or {})
        row = {"prompt": of_data.get("prompt", sample.get("prompt")), "gold": text.gold, "columns": known}
        row["own"] = run.guessed.get("completion", "completion")  # the name of the reward's argument
        rows.setdefault((text.prompt, text.completion), with_text(row, text.completion))
    return list(rows.values())[:TRIED]


def sandbox_scores(code: str, trials: list[dict]) -> list[list[float | None]]:
    """The scores that each trial prints when scripts/sandbox.py runs the code on it."""
    need(SANDBOX.is_file(), f"got --rescore without {SANDBOX}, which confines the reward; expected it there")
    with tempfile.TemporaryDirectory() as folder:
        program, tests = Path(folder, "program.py"), Path(folder, "tests.json")
        program.write_text(code, encoding="utf-8")
        cases = [{"input": json.dumps(trial, default=str), "output": "?"} for trial in trials]
        tests.write_text(json.dumps(cases), encoding="utf-8")
        command = [sys.executable, SANDBOX, "--code", program, "--tests", tests, "--timeout_s", "20"]
        done = subprocess.run([*map(str, command), "--memory_mb", "2048"], capture_output=True, text=True)
    try:
        details = [result["detail"] for result in json.loads(done.stdout)["results"]]
    except (ValueError, KeyError):
        raise UserError(f"got --rescore, but the sandbox did not run: {done.stderr.strip()[-300:]}") from None
    matches = [re.search(r"=([-\d.e+ naif]*)=", detail) for detail in details]
    for match, detail in zip(matches, details, strict=True):
        need(match, f"got --rescore, but the reward failed in the sandbox: {detail[-300:]}")
    return [[None if word in ("-", "nan") else float(word) for word in match[1].split()] for match in matches]


def reward_code(run: LoggedRun, spec: str) -> tuple[str, str]:
    """(code, function) of the reward `spec` (FILE.py:function), or of the one that the settings or a script name."""
    file, name = next(iter(named_rewards(spec, run)), ("", ""))
    path = file_near(file, Path(run.path).parent)
    if not path and not spec and run.reward_source:
        return run.reward_source, run.reward_name
    need(path, f"got --rescore with {file or 'no reward'}; expected the reward's file; try --reward FILE.py:function")
    text = path.read_text(encoding="utf-8")
    known = re.findall(r"(?m)^(?:def|class) (\w+)", text)
    need(name in known, f"got --reward {file}:{name}; expected a function of {path}: {', '.join(known) or 'none'}")
    return re.split(r"(?m)^if __name__ *== *['\"]__main__", text)[0], name


def rescore(run: LoggedRun, spec: str) -> None:
    """Score trials by the reward `spec` (FILE.py:function; "" takes the run's), and put conclusions into `run.trials`.

    Raises UserError if there is no reward or no sample, or if the reward fails.
    """
    code, name = reward_code(run, spec)
    rows = trial_rows(run)
    need(rows, "got --rescore without samples; expected samples.jsonl beside the log, or --samples FILE")
    golds = [row for row in rows if row["gold"] is not None]
    trials = {"logged": [rows], "twice": [rows, rows], "alone": [[row] for row in rows], "reversed": [rows[::-1]]}
    trials["nonsense"] = [[with_text(row, NONSENSE) for row in rows]]
    trials |= {form: [[with_text(row, form.format(row["gold"])) for row in golds]] for form in GOLD_FORMS if golds}
    scores = sandbox_scores(f"{code}\n\n{TRIAL}", [{"function": name, "calls": calls} for calls in trials.values()])
    run.trials = conclusions(dict(zip(trials, scores, strict=True)))


def conclusions(scores: dict[str, list]) -> dict[str, str]:
    """{cause: evidence} from the scores of each trial; {} if nothing is wrong."""
    logged = scores["logged"]
    if logged * 2 != scores["twice"]:
        return {"noisy_reward": "the same samples scored differently when scored twice"}
    if logged != scores["alone"] or logged != scores["reversed"][::-1]:
        return {"gold_mismatch": "samples score differently alone, in a batch or in another order of it"}
    forms = zip(*(scores[form] for form in GOLD_FORMS if form in scores), strict=True)
    paid = [[x for x in values if x is not None] for values in forms]
    gold, least = ([end(values) for values in paid if values] for end in (max, min))  # best and worst form of each
    nonsense = [x for x in scores["nonsense"] if x is not None]
    if not gold or not nonsense:
        return {}
    if len({*gold, *nonsense, *logged} - {None}) == 1:
        return {"constant_reward": f"gold answers, nonsense and logged samples all score {gold[0]:.4g}"}
    if max(gold) <= min(nonsense) and max(least) < min(nonsense):  # an unread form scores like nonsense
        return {"inverted_reward": f"gold answers score as low as {min(least):.4g}, nonsense {min(nonsense):.4g}"}
    if abs(sum(gold) / len(gold) - sum(nonsense) / len(nonsense)) < 1e-9:
        return {"reward_ignores_answer": f"gold answers and nonsense both score {gold[0]:.4g} in the mean"}
    return {}


# -------------------------------------------------------------------------- command (src/programs/diagnose/command.py)

SHOWN_TEXT = 160  # last characters of a completion that are printed


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help, allow_abbrev=False)
    text = "run folder or log, see above; several are read in turn"
    parser.add_argument("runs", nargs="+", metavar="RUN_OR_FILE", help=text)
    parser.add_argument("--json", action="store_true", help="verdicts as JSON on standard output (default: text)")
    text = "completions per prompt, if the log does not say (default: 0, from the run's settings)"
    parser.add_argument("--group_size", "--group-size", type=int, default=0, metavar="G", help=text)
    text = f"names in this log for: {', '.join(FIGURES)} (default: known names)"
    parser.add_argument("--columns", nargs="+", metavar="FIGURE=NAME", default=[], help=text)
    for name, text in (
        ("settings", "file with the run's settings: YAML, JSON, a shell or a Python script, which is not run"),
        ("samples", "file with the run's samples: JSONL, CSV or parquet with prompt, completion, score"),
        ("data", "training data, for gold answers by prompt: JSONL, JSON, CSV or parquet"),
        ("reward", "FILE.py:function of the reward, to read, and for --rescore to run"),
    ):
        parser.add_argument(f"--{name}", default="", metavar="FILE", help=f"{text} (default: beside the log)")
    text = "run the reward in the sandbox on logged samples, gold and nonsense (default: run no code)"
    parser.add_argument("--rescore", action="store_true", help=text)
    return parser


def named_columns(pairs: list[str]) -> dict[str, str]:
    """{figure: column} of --columns; UserError for an unknown figure."""
    columns = dict(pair.partition("=")[::2] for pair in pairs)
    for figure, name in columns.items():
        known = figure in FIGURES and name
        need(known, f"got --columns {figure}={name}; expected FIGURE=NAME with one of {', '.join(FIGURES)}")
    return columns


def print_verdict(run: LoggedRun, data: dict) -> None:
    first, last = data["steps"]
    since = f" since step {data['since_step']}" if data["since_step"] is not None else ""
    tell(f"{data['path']}: {data['trainer']}, {data['format']}, steps {first}-{last}: {data['verdict']}{since}")
    texts = {text.id: text for text in run.texts}
    for cause in data["causes"]:
        tell(f"\n  {cause['certainty'].upper()} {cause['cause']}: {cause['says']}")
        for item in cause["evidence"]:
            place = f"  ({item['figure']}{'' if item['step'] is None else ', step {step}'.format(**item)})"
            tell(f"    saw       {item['text']}{place if item['figure'] else ''}")
            for id in item["samples"]:
                text = texts[id]
                score = "" if text.score is None else f"{text.score:.3g}"
                tell(f"              {id} score {score} gold {text.gold}: {text.completion[-SHOWN_TEXT:]!r}")
        for text in cause["explains"]:
            tell(f"    explains  {text}")
        tell(f"    change    {cause['change']}")
        if cause["decide_with"]:
            tell(f"    to decide {cause['decide_with']}")
        tell(f"    source    {cause['source']}")
    for text in data["unexplained"]:
        tell(f"  seen: {text}")
    for text in data["remarks"]:
        tell(f"  note: {text}")
    tell(f"\n  had: {', '.join(data['had'])}")
    if data["lacked"]:
        tell(f"  would help to decide: {'; '.join(data['lacked'])}")


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    reports, failed = [], []
    try:
        args = parse_flags(command_line(), [word for word in words if word != "-"])  # `--json -`
        columns = named_columns(args.columns)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    for source in args.runs:
        try:
            run = load_run(source, columns, args.settings, args.samples, args.data, args.reward, args.group_size)
            if args.rescore:
                rescore(run, args.reward)
            reports.append(diagnose(run))
            if not args.json:
                tell("\n" if len(reports) > 1 else "", end="")
                print_verdict(run, reports[-1])
        except UserError as error:
            failed.append({"path": source, "verdict": "unreadable", "error": str(error)})
            print(f"error: {error}", file=sys.stderr)
    ill = any(report["causes"] or report["verdict"] not in (LEARNED, TOO_SHORT, OPEN) for report in reports)
    code = 2 if failed else 1 if ill else 3 if any(report["verdict"] != LEARNED for report in reports) else 0
    if args.json:
        everything = reports + failed
        alone = everything[0] if len(everything) == 1 else {}  # a single run's fields are at the top too
        tell(json.dumps({**alone, "runs": everything, "exit_code": code}, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
