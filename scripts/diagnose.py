#!/usr/bin/env python3
# Built from src/programs/diagnose/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["matplotlib", "numpy>=1.26", "pyarrow", "pyyaml"]
# ///
"""Read what an RL run left and name the root cause first: evidence, what it explains, what to change, source.

A RUN_OR_FILE is one of

    ppo_train.py, grpo_train.py   metrics.jsonl, or the run's folder (config.json and samples.jsonl are read too)
    templates/*.py and copies     the same, with settings.json in the place of config.json
    TRL                           trainer_state.json, a checkpoint or output folder, or console output ({'loss': …})
    verl                          console output (step:N - key:value - …), or the JSONL of trainer.logger=file
    others                        lines of name=value, or a CSV file such as wandb's export; --columns for other names

The verdict is learned, did not learn, broken (since a step), too short or unreadable. At most two causes are named,
and what they explain stands under them, without advice of its own; with two, a command tells them apart. Settings,
samples and the reward's source are read where they lie beside the log, or where a flag names them; no code of a run is
executed without --rescore. What was read, and what more would decide, stands at the end.

Trends compare the medians of the first and the last quarter of the steps (3 to 20 of them). They count only beyond what
chance gives noise of the same scatter and persistence, also where the best stretch of many was chosen: each cause comes
in at most 1 % of simulated logs of flat noise (benchmarks/false_alarms.py). Thresholds come from the source that a
cause names; where none exists it says "our heuristic". benchmarks/README.md has how often the cause is right.

    groups that teach nothing, at pass rate p and group size G: p^G + (1 - p)^G, for independent draws of a 0/1 reward

Deliberately left out: trackers' own files (wandb, tensorboard), crashes and out-of-memory errors, which
references/troubleshooting.md covers, and judging whether a final score is a good one.

    python scripts/diagnose.py runs/first
    python scripts/diagnose.py verl_console.log --group_size 8 --json
    python scripts/diagnose.py runs/first --rescore --reward my_rewards.py:correct --data train.jsonl
    python scripts/diagnose.py mine.log --columns reward=avg_return kl=kl_to_ref step=it
    python scripts/diagnose.py out/checkpoint-500/trainer_state.json runs/other --plot curves.png

Exit codes: 0 learned, 1 a cause, broken or did not learn, 2 unreadable, 3 too short; of several runs 2, then 1, then 3.
"""

# Contents
#       111-136  messages               Errors that a user can mend, each with its exit code, and what is said on stderr
#       139-142  bundle                 Where this bundle and its embedded model, data and rewards lie
#       145-276  dialect                One setting under several names: ours, those of the pages, and TRL's. A …
#       279-307  settings               Settings: a dataclass whose fields are flags and YAML keys, and the checks …
#       310-384  extracts               The part of a Python file that some of its names need, as a file of its own
#       387-410  pictures               Pictures of a run: curves.png, and what samples.jsonl has of each sampled token
#       413-434  paired tests           Intervals, paired tests, pass@k
#       437-652  metric names           Names of metrics and settings in three kinds of logs
#       655-756  trends                 Trends of a series
#       759-919  logged run             A run as its log, settings and samples show it: the facts that causes are …
#      922-1127  sample texts           Samples as causes read them: text, score, gold, and what a completion states …
#     1130-1201  plain logs             Logs of no framework: CSV files, lines of name=value, and the columns that …
#     1204-1363  sample dumps           Samples that other trainers leave beside their logs: verl's dumps of …
#     1366-1602  run settings           Settings of a run under common names: ours, TRL's, verl's, EasyR1's, …
#     1605-2041  log reading            Reading the logs: ours, TRL's, verl's
#     2044-2100  cause                  A cause: the evidence that it needs, what it explains, and what to change
#     2103-2179  signs                  Signs: what figures show without saying why; a cause explains them, and none …
#     2182-2218  overflow               Overflow: a loss, gradient or KL that is not finite, or updates left out for …
#     2221-2284  jump at restart        A jump at a restart: figures after it do not go on from those before
#     2287-2323  too hard               Too hard: no completion is right, so no group has anything to prefer
#     2326-2406  near greedy sampling   Near-greedy sampling: completions of a prompt hardly differ, so neither do …
#     2409-2459  answer form            The answer's form: completions state the right answer where the reward does …
#     2462-2533  gold mismatch          Gold that is not the row's: a number against a text, another row's gold, a …
#     2536-2602  constant reward        A constant reward: every completion is paid the same, or one part always pays …
#     2605-2644  inverted reward        An inverted reward: wrong answers are paid more than right ones
#     2647-2682  reward ignores answer  A reward that ignores the answer: right and wrong completions are paid alike, …
#     2685-2722  noisy reward           A noisy reward: the same completion of the same prompt is paid differently
#     2725-2770  limit too short        The limit is below what an answer needs: completions are cut from the first …
#     2773-2802  too easy               Too easy: nearly every completion is right from the start
#     2805-2839  too sparse             Too sparse for the group: right answers occur, but most groups have none
#     2842-2885  no group variance      No variance within groups, though scores differ between prompts
#     2888-2935  sampler mismatch       Sampler and trainer disagree on the probability of sampled tokens
#     2938-2968  stale weights          Stale weights: the sampler keeps old weights while the trainer moves away …
#     2971-3042  updates too large      Updates too large: rate, passes or minibatches move the policy further than …
#     3045-3142  nothing moves          Nothing moves: scores differ in groups and the policy stays what it was
#     3145-3180  kl holds policy        KL holds the policy: its weight keeps the policy where it began, whatever the …
#     3183-3283  part bought            One part is bought at the cost of the answer: length, tags, digits, brevity, …
#     3286-3340  part dies              One part or turn dies while the whole rises
#     3343-3397  memorised prompts      Few prompts learnt by heart: training rises, held-out does not
#     3400-3468  other eval task        The held-out prompts are of another task, or also train
#     3471-3529  critic useless         A critic that explains nothing after its warm-up, while scores differ
#     3532-3556  conversation fails     Conversations that fail: tools are not called, their calls end in errors
#     3559-3602  memory grows           Memory that grows step by step although completions do not: of a GPU, or of …
#     3605-3738  ranking                Which cause explains a run best, and the run's verdict
#     3741-3813  report and plot        The report and the plot
#     3816-3968  rescoring              --rescore: the reward on logged samples, on gold, on nonsense, twice, alone …
#     3971-4051  command                The command line

import argparse
import ast
import csv
import difflib
import io
import itertools
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
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


# ------------------------------------------------------------------------- settings (src/parts/foundation/settings.py)


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
        near = f"; {follows}" if follows else suggest(name, [f"--{name}" for name in names])
        parser.error(f"got unknown argument {unknown[0]!r}; expected a flag of --help{near}")
    return known


# ---------------------------------------------------------------------------- extracts (src/parts/rewards/extracts.py)

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bound_names(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement binds in its module."""
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


def read_names(node: ast.AST) -> set[str]:
    """All names that occur in a statement."""
    return {leaf.id for leaf in ast.walk(node) if isinstance(leaf, ast.Name)}


def statements_of(source: str) -> list[tuple[ast.stmt, str]]:
    """The top-level statements of Python source with their text, the comments above them included."""
    lines, pieces = source.splitlines(), []
    for statement in ast.parse(source).body:
        decorators = [node.lineno for node in getattr(statement, "decorator_list", [])]
        first = min([statement.lineno, *decorators]) - 1
        while first and lines[first - 1].startswith("#"):
            first -= 1
        pieces.append((statement, "\n".join(lines[first : statement.end_lineno]) + "\n"))
    return pieces


def needed(pieces: list[tuple[ast.stmt, str]], names: list[str]) -> set[int]:
    """The places of the statements that bind the names, and of those that these use."""
    wanted, seen, kept = [*names], set(), set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
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
    """Python source with the top-level statements that bind the names, and those that these use, in their order.

    Statements that bind nothing are left out, such as calls and what stands below `if __name__ == "__main__":`.
    """
    pieces = statements_of(source)
    kept, chosen = needed(pieces, names), []
    for place, (statement, lines) in enumerate(pieces):
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        docstring = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if place in kept or future or docstring:
            chosen.append((statement, lines + "\n" * docstring))
    return joined(chosen)


# ---------------------------------------------------------------------------- pictures (src/parts/running/pictures.py)


def draw_panels(panels: list[tuple[str, dict[str, list]]], title: str):
    """A figure of panels (title, {name: points}) over one step axis."""
    from matplotlib.figure import Figure

    columns = min(3, max(1, len(panels)))
    shape = max(1, math.ceil(len(panels) / columns)), columns
    size = (0.5 + 4.2 * columns, 0.4 + 3.1 * shape[0])
    figure = Figure(figsize=size, layout="constrained")  # pyplot's would stay in memory until it is closed
    axes = figure.subplots(*shape, sharex=True, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (heading, lines) in zip(axes.flat, panels, strict=False):
        for key, points in lines.items():
            axis.plot(*zip(*points, strict=True), label=key, marker="o" if len(points) < 20 else None, markersize=3)
        axis.set_title(heading, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        axis.tick_params(labelbottom=True)
    figure.suptitle(title)
    figure.supxlabel("step")
    return figure


# -------------------------------------------------------------------- paired tests (src/parts/reading/paired_tests.py)

Z95, Z_POWER = 1.959963984540054, 0.8416212335729143  # normal quantiles of 97.5 % and of 80 % power


def wilson_interval(successes: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Score interval of a proportion (Wilson 1927), also for 0 and n successes."""
    p, shrink = successes / n, 1 + z * z / n
    middle = (p + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def share_gain(before: tuple[float, float], after: tuple[float, float]) -> tuple[float, float, float]:
    """Gain between two (share, count) of independent samples, and its 95 % interval (Newcombe 1998, method 10)."""
    (low_a, high_a), (low_b, high_b) = (wilson_interval(p * n, n) for p, n in (before, after))
    gain = after[0] - before[0]
    return (
        gain,
        gain - math.hypot(after[0] - low_b, high_a - before[0]),
        gain + math.hypot(high_b - after[0], before[0] - low_a),
    )


# -------------------------------------------------------------------- metric names (src/parts/reading/metric_names.py)

# what each framework's log calls the quantities below; of several names for one in a row, the first here counts
OURS = {
    "reward/mean": "score",
    "reward/std": "score_std",
    "reward/zero_std_frac": "zero_std",
    "kl/ref": "kl",
    "kl/approx": "kl_step",
    "policy/loss": "loss",
    "policy/clip_frac": "clip_frac",
    "policy/entropy": "entropy",
    "policy/ratio_max": "ratio_max",
    "value/loss": "value_loss",
    "value/explained_variance": "explained_variance",
    "rollout/length_mean": "length",
    "rollout/truncated_frac": "truncated",
    "rollout/logprob_gap_max": "gap_max",
    "rollout/turns_mean": "turns",
    "rollout/limit_frac": "limit",
    "tool/calls_mean": "tool_calls",
    "tool/failure_frac": "tool_failures",
    "tool/seconds": "tool_seconds",
    "mismatch/kl": "mismatch_kl",
    "mismatch/weight_mean": "weight_mean",
    "optim/lr": "lr",
    "optim/grad_norm": "grad_norm",
    "optim/critic_grad_norm": "critic_grad_norm",
    "optim/updates": "updates",
    "optim/skipped_updates": "skipped",
    "time/rollout": "time_rollout",
    "time/reward": "time_reward",
    "time/step": "time_step",
    "memory/gpu_peak_gib": "gpu_memory",
    "memory/process_gib": "memory",
    "eval/accuracy": "held_out",
    "eval/rows": "held_out_rows",
    "kl/coef": "kl_weight",
}
TRL = {
    "reward": "score",
    "reward_std": "score_std",
    "frac_reward_zero_std": "zero_std",
    "kl": "kl",
    "loss": "loss",
    "clip_ratio/region_mean": "clip_frac",
    "cispo_clip_ratio": "clip_frac",
    "entropy": "entropy",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "truncated",
    "tools/call_frequency": "tool_calls",
    "tools/failure_frequency": "tool_failures",
    "sampling/sampling_logp_difference/mean": "gap_mean",
    "sampling/sampling_logp_difference/max": "gap_max",
    "sampling/importance_sampling_ratio/mean": "weight_mean",
    "learning_rate": "lr",
    "grad_norm": "grad_norm",
    "step_time": "time_step",
    "eval_reward": "held_out",
}
VERL = {
    "critic/score/mean": "score",
    "critic/rewards/mean": "score",
    "critic/score/max": "score_max",
    "critic/score/min": "score_min",
    "critic/advantages/max": "advantage_max",
    "critic/advantages/min": "advantage_min",
    "actor/kl_loss": "kl",
    "actor/reward_kl_penalty": "kl",
    "actor/ppo_kl": "kl_step",
    "actor/pg_loss": "loss",
    "actor/pg_clipfrac": "clip_frac",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "critic/vf_loss": "value_loss",
    "critic/vf_explained_var": "explained_variance",
    "response_length/mean": "length",
    "response_length/max": "length_max",
    "response_length/clip_ratio": "truncated",
    "rollout_corr/k3_kl": "mismatch_kl",
    "rollout_corr/rollout_is_mean": "weight_mean",
    "rollout_corr/rollout_is_std": "weight_std",
    "rollout_corr/rollout_is_eff_sample_size": "weight_ess",
    "training/rollout_actor_probs_pearson_corr": "probs_correlation",
    "actor/lr": "lr",
    "actor/grad_norm": "grad_norm",
    "critic/grad_norm": "critic_grad_norm",
    "timing_s/gen": "time_rollout",
    "timing_s/reward": "time_reward",
    "timing_s/step": "time_step",
    "perf/max_memory_allocated_gb": "gpu_memory",
}
EARLIER = {  # and elsewhere: what TRL's trainers, and OpenRLHF, called them in the last two years
    # GRPO until 0.16, PPO until 1.12, online DPO; sums over a completion's tokens are no figures of a token
    "completion_length": "length",
    "clip_ratio": "clip_frac",
    "objective/scores": "score",
    "objective/kl": "kl_sum",
    "objective/entropy": "entropy_sum",
    "policy/approxkl_avg": "kl_step",
    "policy/clipfrac_avg": "clip_frac",
    "policy/entropy_avg": "entropy",
    "loss/policy_avg": "loss",
    "loss/value_avg": "value_loss",
    "val/ratio": "ratio_mean",
    "lr": "lr",
    "eval_objective/scores": "held_out",
    # OpenRLHF, as it names them to trackers
    "response_length": "length",
    "policy_loss": "loss",
    "critic_loss": "value_loss",
    "ppo_kl": "kl_step",
    "ppo_clip_ratio": "clip_frac",
    "entropy_loss": "entropy",
    "actor_lr": "lr",
}
NAMES = {"ours": OURS, "trl": TRL | EARLIER, "verl": VERL | {"critic/kl": "kl"}}  # the last one until 0.3
PARTS = {
    "ours": r"reward/(?!mean$|std$|zero_std_frac$)(.+)",
    "trl": r"rewards/(?!chosen|rejected|margins|accuracies)(.+?)(?:/mean)?(?<!/std)",
    "verl": r"gdpo/(.+)/mean",
}
HELD_OUT_PARTS = {
    "ours": r"eval/(?!accuracy|rows|score$|length)(.+)",
    "trl": r"eval_rewards/(.+)/mean",
    "verl": r"(?!)",
}
HELD_OUT = {
    "ours": r"eval/accuracy",
    "trl": r"eval_reward|(?:eval_)?eval_.+_pass1",
    "verl": r"val-core/.+/(?:acc|reward)/mean@\d+|val/test_score/.+",
}

# the settings that a remedy names, by who trains; a page has most of those of ppo_train.py, grpo_train.py of TRL's
ACTOR = "actor_rollout_ref.actor"
PPO_SETTINGS = {
    "lr": "--lr",
    "group": "--group_size",
    "temperature": "--temperature",
    "length": "--max_new_tokens",
    "kl": "--kl_coef",
    "reuse": "--ppo_epochs and --minibatches",
    "critic_lr": "--critic_lr",
    "critic_warmup": "--critic_warmup_steps 10",
    "critic_updates": "--minibatches 4, with a lower --lr, as the policy gets them too",
    "value_clip": "--value_clip 0",
    "critic_free": "--algorithm grpo or rloo",
    "grad_clip": "--max_grad_norm",
    "filter": "--dynamic_sampling true",
    "mismatch": "--mismatch tis",
    "precision": "--precision bf16 (or fp32)",
    "batch": "--batch_size",
    "tool_form": "--tool_format",
}
PAGE_SETTINGS = PPO_SETTINGS | {
    "reuse": "--epochs and --minibatches",
    "critic_free": "templates/grpo.py",
    "grad_clip": "the bound of clip_grad_norm_",
    "filter": "a training file without the prompts that all or none solve",
    "mismatch": "scripts/ppo_train.py --mismatch tis",
    "precision": "weights in float32, as the page has them",
    "batch": "number of completions of a step",
    "tool_form": "what the page takes for a call",
}
TRL_SETTINGS = {
    "lr": "learning_rate",
    "group": "num_generations",
    "temperature": "temperature",
    "length": "max_completion_length",
    "kl": "beta",
    "reuse": "num_iterations and steps_per_generation",
    "critic_lr": "the critic's learning rate",
    "critic_warmup": "a critic warm-up",
    "critic_updates": "smaller minibatches",
    "value_clip": "no clip of values",
    "critic_free": "no critic, as GRPO and RLOO",
    "grad_clip": "max_grad_norm",
    "filter": "a data set without the prompts that all or none solve (TRL has no dynamic sampling)",
    "mismatch": "vllm_importance_sampling_correction=True",
    "precision": "bf16=True with weights in float32, in place of fp16=True",
    "batch": "gradient_accumulation_steps",
    "tool_form": "a tokenizer with a response schema",
}
GRPO_SETTINGS = {word: f"--{name}" if name.isidentifier() else name for word, name in TRL_SETTINGS.items()} | {
    "reuse": "--num_iterations and --steps_per_generation",
    "filter": "a training file without the prompts that all or none solve (TRL has no dynamic sampling)",
    "mismatch": "--trainer_args vllm_importance_sampling_correction=true",
    "precision": "--precision bf16 (or fp32)",
    "tool_form": "--tool_format",
}
VERL_SETTINGS = {
    "lr": f"{ACTOR}.optim.lr",
    "group": "actor_rollout_ref.rollout.n",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "length": "data.max_response_length",
    "kl": f"{ACTOR}.kl_loss_coef (use_kl_loss=True), or algorithm.kl_ctrl.kl_coef (use_kl_in_reward=True)",
    "reuse": f"{ACTOR}.ppo_epochs, or a larger {ACTOR}.ppo_mini_batch_size",
    "critic_lr": "critic.optim.lr",
    "critic_warmup": "trainer.critic_warmup=10",
    "critic_updates": "critic.ppo_mini_batch_size a quarter of the batch, or a larger critic.ppo_epochs",
    "value_clip": "critic.cliprange_value=1000 (as good as off)",
    "critic_free": "algorithm.adv_estimator=grpo or rloo",
    "grad_clip": f"{ACTOR}.grad_clip",
    "filter": "algorithm.filter_groups.enable=True",
    "mismatch": "algorithm.rollout_correction.rollout_is=token",
    "precision": f"{ACTOR}.fsdp_config.dtype=bfloat16 with model_dtype=fp32",
    "batch": "data.train_batch_size",
    "tool_form": "actor_rollout_ref.rollout.multi_turn.format",
}
SETTINGS = {
    "ppo_train": PPO_SETTINGS,
    "one_page": PAGE_SETTINGS,
    "grpo_train": GRPO_SETTINGS,
    "trl": TRL_SETTINGS,
    "verl": VERL_SETTINGS,
}


# -------------------------------------------------------------------------------- trends (src/parts/reading/trends.py)

TREND_STEPS = 10  # fewer: no trend is judged
ALARM = 0.006  # of flat series show a trend by chance; benchmarks/false_alarms.py counts them


def window(count: int) -> int:
    """Steps in the first and in the last stretch of a run."""
    return max(3, min(count // 4, 20))


def ends(values: list[float]) -> tuple[float, float]:
    """Medians of the first and of the last stretch."""
    k = window(len(values))
    return statistics.median(values[:k]), statistics.median(values[-k:])


def persistence(values: list[float]) -> float:
    """Lag-1 autocorrelation of the noise, between 0 and 0.5, from the changes between steps: a trend does not count."""
    changes = [b - a for a, b in itertools.pairwise(values)]
    mean = statistics.fmean(changes)
    changes = [change - mean for change in changes]
    square = sum(change * change for change in changes)
    if square <= 1e-18 * max(map(abs, values)) ** 2 * len(values):  # a straight line
        return 0.0
    # of AR(1) noise the changes have the lag-1 autocorrelation (rho - 1) / 2
    return min(0.5, max(0.0, 1 + 2 * sum(a * b for a, b in itertools.pairwise(changes)) / square))


def noise(values: list[float]) -> float:
    """Scatter of a step, so that the median of k steps has the standard error 1.25 noise / sqrt k.

    Median and upper quartile of the distances of neighbours give it, which a trend only makes larger: the median times
    1.4826 / sqrt 2, the quartile times 0.8693 / sqrt 2, whichever is more, as a coarse score often has the distance 0.
    Noise that persists has sqrt(1 + rho) / (1 - rho) times the scatter of independent noise with these distances.
    """
    distances = sorted(abs(b - a) for a, b in itertools.pairwise(values))
    quartile = distances[3 * (len(distances) - 1) // 4]
    rho = persistence(values)
    return max(1.4826 * statistics.median(distances), 0.8693 * quartile) / math.sqrt(2) * math.sqrt(1 + rho) / (1 - rho)


def standard_error(values: list[float]) -> float:
    """Standard error of the difference between the medians of the first and the last stretch."""
    return 1.25 * noise(values) * math.sqrt(2 / window(len(values)))


def errors_of_chance(count: int, choices: float = 1) -> float:
    """Standard errors that chance exceeds in a share ALARM of flat series, for the best of several `choices`.

    It is Student's t, by Hill's first terms, with `count` degrees of freedom, as the scatter is estimated too.
    """
    z = statistics.NormalDist().inv_cdf(1 - ALARM / 2 / choices)
    return z + (z**3 + z) / (4 * count) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * count**2)


def trend(values: list[float]) -> int:
    """1 where the last stretch lies above the first, -1 below, 0 where chance explains it or below 10 steps."""
    if len(values) < TREND_STEPS:
        return 0
    first, last = ends(values)
    chance = errors_of_chance(len(values)) * standard_error(values)
    return 0 if abs(last - first) <= max(chance, 1e-9) else 1 if last > first else -1


def is_flat(values: list[float], slack: float = 0.02) -> bool:
    """Whether 20 steps or more show no rise: neither a trend nor more than `slack` between the medians."""
    first, last = ends(values) if values else (0.0, 0.0)
    return len(values) >= 2 * TREND_STEPS and trend(values) <= 0 and last - first <= slack


def onset(found: dict[int, float]) -> int:
    """The first step at which a series with a trend is half way; the last step of one without."""
    steps = sorted(found)
    values = [found[step] for step in steps]
    way = trend(values)
    if not way:
        return steps[-1]
    middle = sum(ends(values)) / 2
    return next(step for step, value in zip(steps, values, strict=True) if way * (value - middle) >= 0)


def forecast(p: float, group: int) -> float:
    """Expected share of groups whose 0/1 rewards are all equal, at pass rate p."""
    return p**group + (1 - p) ** group


def is_format(name: str) -> bool:
    """Whether a reward function's name says that it judges the form."""
    return bool(re.search(r"format|xml|tag|json|layout|structure|think", name, re.IGNORECASE))


def names_correctness(name: str) -> bool:
    """Whether a reward function's name says that it judges the answer."""
    return bool(re.search(r"correct|acc|answer|exact|math|solv", name, re.IGNORECASE)) and not is_format(name)


def repeats(text: str) -> float:
    """Share of the 6-character pieces of a text's first 1,000 characters that occurred before; 0 below 30."""
    text = text[:1000]
    pieces = [text[i : i + 6] for i in range(len(text) - 5)]
    return 1 - len(set(pieces)) / len(pieces) if len(text) >= 30 else 0.0


# ------------------------------------------------------------------------ logged run (src/parts/reading/logged_run.py)

SOLVED = 0.95
GAIN = 0.03  # of the held-out figure; the standard error of 256 answers at one half
EARLY = 5  # steps in which a policy is nearly the one that it was at the start


@dataclass
class LoggedRun:
    """What a run left: `series` under common names, `rows` as they stand in its log.

    `settings` are `config`, the run's own settings, under common names; `reward_source` is the code of its rewards.
    """

    path: str
    format: str
    trainer: str
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    rows: list[dict] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    samples: list[dict] = field(default_factory=list)
    broken: list[tuple[str, int, float]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    settings_file: str = ""
    reward_source: str = ""
    trials: dict = field(default_factory=dict)  # what --rescore measured
    texts: list = field(default_factory=list)  # the samples as causes read them
    golds: dict[str, str] = field(default_factory=dict)  # gold answers of the training data by prompt, in its order

    def values(self, name: str) -> list[float]:
        """The finite values of a series, by step."""
        points = self.series.get(name, {})
        return [points[step] for step in sorted(points)]

    def first(self, name: str) -> float:
        """Median of the first stretch of a series; NaN without one."""
        return ends(self.values(name))[0] if self.series.get(name) else math.nan

    def last(self, name: str) -> float:
        """Median of the last stretch of a series; NaN without one."""
        return ends(self.values(name))[1] if self.series.get(name) else math.nan

    def trend(self, name: str) -> int:
        """1 where a series rises beyond chance, -1 where it falls, else 0."""
        return trend(self.values(name))

    def early(self, name: str, steps: int = EARLY) -> list[float]:
        """The values of a series at its first steps."""
        return self.values(name)[:steps]

    def name(self, series: str) -> str:
        """A series' name in this log."""
        return self.names.get(series, series)

    def steps(self) -> list[int]:
        """Every training step of the log."""
        names = [name for name in self.series if not name.startswith("held_out")]
        return sorted({step for name in names for step in self.series[name]})

    def parts(self) -> dict[str, list[float]]:
        """The means of the reward functions, in the order of the log."""
        return {name[5:]: self.values(name) for name in self.series if name.startswith("part:")}

    def number(self, setting: str) -> float | None:
        """A setting as a number; None where it is not known or no number."""
        value = self.settings.get(setting)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class UnreadableError(Exception):
    """The input is no log that can be judged."""


def first_part(run: LoggedRun) -> tuple[str, list[float]]:
    """Name and means of the reward that stands for correctness: named so, else the first; the score without parts."""
    parts = run.parts()
    named = next(filter(names_correctness, parts), None)
    if named:
        return named, parts[named]
    others = [(name, values) for name, values in parts.items() if not is_format(name)]
    return others[0] if others else ("score", run.values("score"))


def is_constant(run: LoggedRun) -> bool:
    """Whether every completion scored the same in four steps of five; without spreads, whether every mean is 0."""
    if run.series.get("score_std"):
        alike = [value <= 1e-6 for value in run.values("score_std")]
    elif run.series.get("score_max") and run.series.get("score_min"):
        pairs = zip(run.values("score_max"), run.values("score_min"), strict=False)
        alike = [high - low <= 1e-6 for high, low in pairs]
    else:
        scores, others = run.values("score"), ("grad_norm", "zero_std", "score_max", "score_min")
        return len(scores) >= TREND_STEPS and not any(scores) and not any(any(run.values(name)) for name in others)
    return len(alike) >= 3 and sum(alike) >= 0.8 * len(alike)


def is_solved(run: LoggedRun) -> bool:
    """Whether the task was learnt in this run: held-out figure or correctness at 0.95, after having been below."""
    held_out = run.values("held_out")
    if held_out and max(held_out) <= 1:
        return max(held_out) >= SOLVED and held_out[-1] >= SOLVED - 0.05
    _, part = first_part(run)
    return len(part) >= 3 and max(part) <= 1 and ends(part)[1] >= SOLVED and min(part) < SOLVED


def held_out_gain(run: LoggedRun) -> tuple[float, float, float] | None:
    """Gain of the held-out figure from the first to the last evaluation with its 95 % interval; None without two.

    Of shares of `eval/rows` answers it is that of independent samples, which is wide for the same rows twice; without
    the number of rows 64 are taken.
    """
    points = sorted(run.series.get("held_out", {}).items())
    if len(points) < 2:
        return None
    (_, before), (_, after) = points[0], points[-1]
    gain, rows = after - before, run.series.get("held_out_rows", {})
    count = rows.get(points[-1][0]) or rows.get(points[0][0])
    if not 0 <= min(before, after) <= max(before, after) <= 1:
        scatter = max(GAIN, *(abs(b - a) for (_, a), (_, b) in itertools.pairwise(points[1:])), 0.0)
        return gain, gain - 2 * scatter, gain + 2 * scatter
    count = count or 64
    return share_gain((before, count), (after, count))


def gained(run: LoggedRun) -> bool:
    """Whether the held-out figure rose, or without one the correctness reward, or without parts the score."""
    gain, held_out = held_out_gain(run), run.values("held_out")
    if gain:
        return gain[0] > GAIN and held_out[-1] > max(held_out) - 2 * GAIN
    return trend(first_part(run)[1]) > 0


def rises_late(run: LoggedRun) -> bool:
    """Whether the score rises over the second half of the run."""
    scores = run.values("score")
    return trend(scores[len(scores) // 2 :]) > 0


def collapse(run: LoggedRun) -> tuple[float, float, int] | None:
    """(best stretch, last stretch, step at which half was lost) where the score fell by more than half, else None."""
    scores = run.values("score")
    if len(scores) < TREND_STEPS:
        return None
    last, floor = ends(scores)[1], min(0, *scores)
    width = min(window(len(scores)), max(5, window(len(scores)) // 2))
    stretches = [statistics.median(scores[i : i + width]) for i in range(len(scores) - width + 1)]
    best, steps, choices = max(stretches), width, len(stretches) / 2  # half, as only a fall counts
    if max(scores[width:]) - floor < (scores[0] - floor) / 2:  # the first updates destroyed the policy for good
        best, steps, choices = scores[0], 1, 1
    error = 1.25 * noise(scores) * math.sqrt(1 / steps + 1 / window(len(scores)))
    chance = errors_of_chance(len(scores), choices) * error
    spread = ends(run.values("score_std"))[0] if run.values("score_std") else 0.0
    if best - last <= max(0.5 * (best - floor), spread / 2, chance, 1e-6):
        return None
    points = sorted(run.series["score"].items())
    if len(scores) < 2 * TREND_STEPS and last > 0.1 * best:
        return None
    top = max(points, key=lambda pair: pair[1])[0]
    return best, last, next((step for step, v in points if step > top and v < (best + last) / 2), points[-1][0])


# -------------------------------------------------------------------- sample texts (src/parts/reading/sample_texts.py)

GOLD_NAMES = (
    *("gold", "answer", "ground truth", "ground_truth", "solution", "target", "label", "reference_answer"),
    *("final_answer", "reference", "expected", "gts", "response", "output"),
)
# how completions mark an answer: the mark's name, or its tag in group 1, and the answer in the last group
MARKED = re.compile(
    r"<(\w+)>([^<>]*)</\1>|\\(boxed)\s*\{((?:[^{}]|\{[^{}]*\})*)\}|(####)\s*([^\n]*)"
    r"|(?i:\b(answer(?: is|[:=]))\s*)([^\n]*)"
)
IN_SOURCE = re.compile(r"<\\?/?(\w+)>|(boxed)|(####)|(?i:\b(answer(?: is|:)))")  # what a reward's source has of it
COMPLETIONS = {"completions", "completion", "solution_str", "response", "responses"}  # what rewards call them
MARK_FORMS = ("{}", "#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "The answer is {}.")
NUMBER = re.compile(r"(?<![\w.])[-−]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?![\w])")


@dataclass(frozen=True)
class Text:
    """One logged completion; `right` is None where the gold answer is not known."""

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


def plain_text(value) -> str:
    """A text, or the last message's content of messages."""
    if isinstance(value, list) and value:
        last = value[-1]
        value = last.get("content") if isinstance(last, dict) else last
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def simplest(answer: str) -> str:
    """An answer without marks, signs of money, separators of thousands and a final point."""
    answer = answer.strip().strip("$ *`").rstrip(".").replace("−", "-")
    bare = re.sub(r"[,\s$]", "", answer)
    if re.fullmatch(r"-?\d+(\.\d+)?", bare):
        return f"{float(bare):.10g}" if "." in bare else str(int(bare)) if len(bare) < 400 else bare
    return answer.casefold()


def gold_of(row: dict) -> str | None:
    """The gold answer of a row, by its columns' names; worked solutions give what they mark."""
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
            # a number with its unit is the number
            return simplest(numbers[0]) if len(numbers) == 1 and len(gold.split()) <= 3 else gold
    return None


def marked_answers(text: str) -> list[tuple[str, str]]:
    """(mark, answer) of every marked answer of a text; a tag's mark is its name."""
    found = [[part for part in groups if part] for groups in MARKED.findall(text)]
    return [(parts[0].casefold(), parts[1].strip()) for parts in found if len(parts) == 2]


def stated_answer(text: str, numeric: bool) -> str:
    """The answer that a completion states last: marked, else the last number or the last line."""
    marked = [answer for mark, answer in marked_answers(text) if mark not in ("think", "reasoning")]
    last = marked[-1] if marked else text.strip().rpartition("\n")[2]
    numbers = NUMBER.findall(last if marked else text) if numeric else []
    return simplest(numbers[-1] if numbers else last)


def holds(text: str, gold: str) -> bool:
    """Whether a gold answer stands anywhere in a text, as a word or number of its own."""
    if re.fullmatch(r"-?\d[\d.]*", gold):
        return any(simplest(number) == gold for number in NUMBER.findall(text)) or gold in {
            simplest(part) for part in re.findall(r"-?\d+", text)
        }
    return re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text.casefold()) is not None


def sample_texts(samples: list[dict], golds: dict[str, str]) -> list[Text]:
    """The samples that have a completion, in the order of the log; `golds` are those of --data by prompt."""
    texts = []
    for i, row in enumerate(samples):
        completion = row.get("completion")
        if not isinstance(completion, (str, list)):
            continue
        completion, prompt = plain_text(completion), plain_text(row.get("prompt"))
        gold = gold_of({k: v for k, v in row.items() if k not in ("prompt", "completion")}) or golds.get(prompt)
        right = None if gold is None else stated_answer(completion, bool(NUMBER.fullmatch(gold))) == gold
        score, rewards = row.get("score"), row.get("rewards")
        parts = {k: float(v) for k, v in rewards.items() if is_real(v)} if isinstance(rewards, dict) else {}
        step = int(row["step"]) if is_real(row.get("step")) else 0
        texts.append(
            Text(
                id=f"{step}.{i}",
                step=step,
                kind=str(row.get("kind", "train")),
                prompt=prompt,
                completion=completion,
                score=float(score) if is_real(score) else None,
                gold=gold,
                right=right,
                finished=row.get("finished") if isinstance(row.get("finished"), bool) else None,
                parts=parts,
            )
        )
    return texts


def is_real(value) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def source_marks(source: str) -> set[str]:
    """The marks that a reward's source, or a prompt, names."""
    return {part.casefold() for groups in IN_SOURCE.findall(source) for part in groups if part}


def asked_marks(texts: list[Text]) -> set[str]:
    """The marks that most prompts ask for."""
    counts = Counter(mark for text in texts for mark in source_marks(text.prompt))
    return {mark for mark, count in counts.items() if count * 2 > len(texts)}


def correct_pay(text: Text) -> float | None:
    """What the part that stands for correctness paid; the score where there is one part or none."""
    if len(text.parts) < 2:
        return text.score
    named = [value for name, value in text.parts.items() if names_correctness(name)]
    return named[0] if named else next(iter(text.parts.values()))


FEATURES = {  # what a reward may pay in place of the answer: how much of it a completion has
    "length": len,
    "tags": lambda text: len(re.findall(r"</?\w+>", text)),
    "digits": lambda text: sum(map(str.isdigit, text)),
    "repetition": repeats,
    "answers tried": lambda text: len(marked_answers(text)),
    "text after the answer": lambda text: len(re.split(r"</answer>|\\boxed\{[^{}]*\}|####\s*\S+", text)[-1].strip()),
}


def correlation(x: list[float], y: list[float]) -> float:
    """Pearson's correlation; 0 where one of them does not vary."""
    if len(x) < 3 or max(x) == min(x) or max(y) == min(y):
        return 0.0
    return statistics.correlation(x, y)


def within_classes(values: list[float], classes: list) -> list[float]:
    """Values less the mean of their class."""
    means = {c: statistics.fmean(v for v, k in zip(values, classes, strict=True) if k == c) for c in {*classes}}
    return [v - means[c] for v, c in zip(values, classes, strict=True)]


def payment_by_feature(texts: list[Text]) -> dict[str, float]:
    """Correlation of score and each feature among completions that are equally right."""
    scored = [t for t in texts if t.score is not None]
    classes = [t.right for t in scored]
    scores = within_classes([t.score for t in scored], classes) if scored else []
    paid = {}
    for name, measure in FEATURES.items():
        amounts = [float(measure(t.completion)) for t in scored]
        paid[name] = correlation(within_classes(amounts, classes), scores) if scored else 0.0
    return paid


def early_texts(texts: list[Text]) -> list[Text]:
    """The samples of the run's first third, before the policy has drifted, where these are 24 and more; else all."""
    steps = sorted({t.step for t in texts})
    early = [t for t in texts if t.step <= steps[len(steps) // 3]] if steps else []
    return early if len(early) >= 24 else texts


def scores_by_answer(texts: list[Text]) -> tuple[list[float], list[float]]:
    """What the part for correctness paid right completions, and wrong ones, where the gold answer is known."""
    paid = [(t.right, correct_pay(t)) for t in texts if t.right is not None]
    return tuple([pay for right, pay in paid if right is kind and pay is not None] for kind in (True, False))


def right_gain(texts: list[Text]) -> tuple[float, float, float] | None:
    """Gain of the share of right completions with its 95 % interval: held out, else of the first and last third."""
    held_out = [t for t in texts if t.kind == "eval" and t.right is not None]
    known = (
        held_out
        if len({t.step for t in held_out}) > 1
        else [t for t in texts if t.kind == "train" and t.right is not None]
    )
    steps = sorted({t.step for t in known})
    third = 1 if known is held_out else max(1, len(steps) // 3)
    shares = [[t.right for t in known if t.step in part] for part in (steps[:third], steps[-third:])]
    if len(steps) < 2 or min(map(len, shares)) < 8:
        return None
    return share_gain(*((sum(share) / len(share), len(share)) for share in shares))


# ------------------------------------------------------------------------ plain logs (src/parts/reading/plain_logs.py)

# what --columns calls a figure, and TRL's name for it, under which it is read
FIGURES = {
    "step": "step",
    "reward": "reward",
    "reward_std": "reward_std",
    "accuracy": "eval_reward",
    "length": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "zero_std": "frac_reward_zero_std",
    "kl": "kl",
    "entropy": "entropy",
    "loss": "loss",
    "clip_frac": "clip_ratio/region_mean",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
}
NAMED_COLUMNS = "named columns"
PAIR = re.compile(r"([A-Za-z_][\w/.@-]*)['\"]?\s*[=:]\s*(?=[-+.\d]|nan|inf)([-+\w.]+)", re.IGNORECASE)


def number_or_text(text):
    """A word of a command or a YAML value as a number, truth value or text."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "null": None, "none": None}.get(text.strip().lower(), text.strip("'\""))


def plain_rows(text: str) -> list[dict]:
    """The rows of a CSV file (wandb's export is one) or of lines with two or more name=value; [] of other texts."""
    text = text.lstrip("\ufeff\n")
    header = text.partition("\n")[0]
    separator = max(",;\t", key=header.count)
    if separator in header and header[0] not in "{[" and not PAIR.search(header):
        rows = list(csv.DictReader(io.StringIO(text), delimiter=separator))
        if any(re.fullmatch(r"[-+]?[.\d]+(e[-+]?\d+)?", str(cell)) for row in rows[:9] for cell in row.values()):
            return [{short_name(name): cell for name, cell in row.items() if name} for row in rows]
    pairs = [dict(PAIR.findall(line)) for line in text.splitlines()]
    return [{short_name(name): value for name, value in row.items()} for row in pairs if len(row) > 1]


def short_name(name: str) -> str:
    """A column's name without the run before it, as wandb writes it: "run - train/reward", whose step is "Step"."""
    name = name.strip().rpartition(" - ")[2]
    return "step" if name.lower() in ("step", "steps", "iter", "iteration", "global_step", "_step") else name


def renamed(rows: list[dict], columns: dict[str, str], path) -> list[dict]:
    """Rows with the columns that were named under TRL's names, in place of what the log has under these."""
    names = {str(name) for row in rows for name in row}
    if not rows:
        raise UnreadableError(f"got {path} without a column; expected JSONL, CSV, or lines of name=value")
    for figure, column in columns.items():
        column = short_name(column)
        if column not in names:
            near = difflib.get_close_matches(column, names, n=1)
            raise UnreadableError(
                f"got --columns {figure}={column}, which {path} does not have; expected one of its columns: "
                f"{', '.join(sorted(names)[:20])}" + (f"; try {figure}={near[0]}" if near else "")
            )
    sources = {FIGURES[figure]: short_name(column) for figure, column in columns.items()}
    kept = [{name: value for name, value in row.items() if name not in sources} for row in rows]
    return [
        old | {name: row[column] for name, column in sources.items() if column in row}
        for old, row in zip(kept, rows, strict=True)
    ]


# -------------------------------------------------------------------- sample dumps (src/parts/reading/sample_dumps.py)

HELD_OUT_FOLDER = re.compile(r"val|eval|held|test", re.IGNORECASE)
VERL_KEYS = ("input", "output", "score", "step")  # of every line of a dump; the rest is what its reward returned
TRL_KEYS = ("step", "prompt", "completion", "advantage")  # the rest are reward functions, and what these have logged


def is_number(value) -> bool:
    """Whether a value of a dump is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def verl_row(row: dict, kind: str) -> dict:
    """A line of verl's dump under the names of samples.jsonl."""
    parts = {key: value for key, value in row.items() if key not in (*VERL_KEYS, "gts", "uid", "request_id")}
    found = {"step": row["step"], "kind": kind, "prompt": row["input"], "completion": row["output"]}
    found |= {"score": row["score"], "rewards": {key: value for key, value in parts.items() if is_number(value)}}
    found |= {key: value for key, value in parts.items() if not is_number(value) and key not in found}
    return found | ({} if row.get("gts") is None else {"ground truth": row["gts"]})


def verl_files(folder: Path, config: dict) -> list[tuple[Path, str]]:
    """(STEP.jsonl, kind) of the dumps that the settings name, or else of the folders beside the log."""
    named = {"train": config.get("trainer.rollout_data_dir"), "eval": config.get("trainer.validation_data_dir")}
    folders = [(Path(path), kind) for kind, path in named.items() if path and Path(path).is_dir()]
    if not folders:
        others = sorted(path for path in folder.iterdir() if path.is_dir())
        folders = [(path, "eval" if HELD_OUT_FOLDER.search(path.name) else "train") for path in others]
    found = [(path, kind) for folder, kind in folders for path in folder.glob("*.jsonl") if path.stem.isdecimal()]
    return sorted(found, key=lambda pair: (int(pair[0].stem), pair[1], str(pair[0])))


def verl_samples(folder: Path, config: dict) -> tuple[list[dict], list[str]]:
    """What trainer.rollout_data_dir and trainer.validation_data_dir hold; rows and remarks."""
    rows, bad = [], 0
    for path, kind in verl_files(folder, config):
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                row = json.loads(line)
                rows.append(verl_row(row, kind))
            except (ValueError, RecursionError, KeyError, AttributeError):
                bad += bool(line.strip())
    return rows, [f"verl's dumps of samples: {bad} lines are no samples; left out"] if bad else []


def rows_of_samples(path: Path) -> list[dict]:
    """The rows of a JSONL, JSON, CSV or parquet file, under the names of samples.jsonl.

    Raises:
        UnreadableError: it has no rows.
    """
    rows = []
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            rows = parquet.read_table(path).to_pylist()
        elif path.suffix == ".csv":
            with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                rows = [{key: number_or_text(cell) for key, cell in row.items()} for row in csv.DictReader(file)]
        else:
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            rows = (
                json.loads(text) if text[:1] == "[" else [json.loads(line) for line in text.split("\n") if line.strip()]
            )
    except (OSError, ValueError, RecursionError, ImportError) as error:
        raise UnreadableError(f"got {path} ({error}); expected JSONL, JSON, CSV or parquet with rows") from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise UnreadableError(f"got {path} without rows; expected JSONL, JSON, CSV or parquet with rows")
    return [verl_row(row, "train") if {*VERL_KEYS} <= row.keys() else renamed_row(row) for row in rows]


SAMPLE_NAMES = {  # of samples.jsonl: what others call it
    "completion": (
        "completion",
        "completions",
        "response",
        "output",
        "generation",
        "generated_text",
        "text",
        "answer_text",
    ),
    "prompt": ("prompt", "prompts", "question", "input", "problem", "query"),
    "score": ("score", "reward", "rewards", "total_reward", "return"),
    "step": ("step", "global_step", "train_step"),
}


def renamed_row(row: dict) -> dict:
    """A row of anyone's samples under the names of samples.jsonl, as far as it has them."""
    known = {name: next((key for key in names if key in row), None) for name, names in SAMPLE_NAMES.items()}
    taken = {name: row[key] for name, key in known.items() if key is not None}
    if isinstance(taken.get("score"), dict):
        taken["rewards"] = taken.pop("score")
    return {k: v for k, v in row.items() if k not in known.values()} | taken


def turns_of(completion) -> tuple[str, list]:
    """The text that the model wrote, and the messages where there are several; a plain text has none."""
    if not isinstance(completion, list):
        return completion, []
    said = [m.get("content") for m in completion if isinstance(m, dict) and m.get("role", "assistant") == "assistant"]
    text = "\n".join(content if isinstance(content, str) else json.dumps(content) for content in said if content)
    return text, completion if len(completion) > 1 or any(m.get("tool_calls") for m in completion) else []


def trl_row(row: dict, weights: dict[str, float] | None) -> dict:
    """A row of TRL's table under the names of samples.jsonl; its score is None where the weights are not known."""
    text, turns = turns_of(row.get("completion"))
    parts = {key: value for key, value in row.items() if key not in TRL_KEYS}
    rewards = {key: value for key, value in parts.items() if value is None or is_number(value)}
    applies = {key: x for key, x in rewards.items() if x is not None and math.isfinite(x) and key in (weights or {})}
    score = sum(weights[key] * value for key, value in applies.items()) if applies else None
    found = {"step": row["step"], "kind": "train", "prompt": row["prompt"], "completion": text, "score": score}
    found |= {"rewards": rewards, "advantage": row.get("advantage")}
    if turns:
        prompt = row["prompt"] if isinstance(row["prompt"], list) else [{"role": "user", "content": row["prompt"]}]
        found["messages"] = [*prompt, *turns]
    return found | {key: value for key, value in parts.items() if key not in rewards and key not in found}


def reward_weights(history: list[dict]) -> dict[str, float] | None:
    """The weights with which TRL's log sums the rewards to `reward`; None where its means do not tell them."""
    names = [re.fullmatch(r"rewards/(.+)/mean", key) for key in dict.fromkeys(key for row in history for key in row)]
    means = [match[0] for match in names if match]
    rows = [row for row in history if all(is_number(row.get(key)) and math.isfinite(row[key]) for key in means)]
    rows = [row for row in rows if is_number(row.get("reward"))] if means else []
    found = [1.0] * len(means)
    if len(rows) > len(means) and any(abs(row["reward"] - sum(map(row.get, means))) > 1e-4 for row in rows):
        import numpy as np

        table = np.array([[row[key] for key in means] for row in rows])
        found, _, rank, _ = np.linalg.lstsq(table, np.array([row["reward"] for row in rows]), rcond=1e-6)
        found = [] if rank < len(means) else [float(f"{weight:.4g}") for weight in found]
    sums = [sum(w * row[key] for w, key in zip(found, means, strict=True)) for row in rows] if found else []
    fits = sums and all(abs(total - row["reward"]) < 1e-3 for total, row in zip(sums, rows, strict=True))
    return dict(zip((match[1] for match in names if match), found, strict=True)) if fits else None


def trl_samples(folder: Path, history: list[dict]) -> tuple[list[dict], list[str]]:
    """What TRL's log_completions=True leaves in the folder completions/; rows and remarks."""
    files = sorted((folder / "completions").glob("completions_*.parquet"))
    if not files:
        return [], []
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return [], ["completions/ could not be read without pyarrow; try pip install pyarrow"]
    rows, bad, weights = [], [], reward_weights(history)
    for path in files:
        try:
            rows += [trl_row(row, weights) for row in parquet.read_table(path).to_pylist()]
        except (pyarrow.ArrowException, OSError, KeyError, TypeError) as error:
            bad.append(f"{path.name} ({type(error).__name__})")
    remarks = [f"completions/ has files that could not be read: {', '.join(bad[:3])}; left out"] if bad else []
    if rows and weights is None and any(len(row["rewards"]) > 1 for row in rows):
        remarks.append("TRL's log does not tell the weights of the rewards: its samples have no score")
    return rows, remarks


# -------------------------------------------------------------------- run settings (src/parts/reading/run_settings.py)

# common name: the last parts of dotted names that mean it in one trainer or another
NAMES_OF_SETTINGS = {
    "temperature": ("temperature",),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "do_sample": ("rollout.do_sample",),
    "group_size": ("group_size", "num_generations", "rollout.n", "n_samples_per_prompt", "num_sample_generations"),
    "max_length": (
        *("max_new_tokens", "max_completion_length", "max_response_length"),
        *("response_length", "generate_max_len", "max_tokens"),
    ),
    "lr": ("lr", "learning_rate", "actor.optim.lr", "actor_learning_rate"),
    "kl": ("kl_coef", "beta", "actor.kl_loss_coef", "kl_ctrl.kl_coef", "init_kl_coef"),
    "warmup": ("warmup_steps", "actor.optim.lr_warmup_steps", "lr_warmup_steps"),
    "steps": ("steps", "max_steps", "total_training_steps"),
    "epochs": ("ppo_epochs", "num_iterations", "actor.ppo_epochs", "num_ppo_epochs", "epochs"),
    "minibatches": ("minibatches", "num_mini_batches"),
    "precision": ("precision", "fsdp_config.model_dtype", "torch_dtype", "dtype", "bnb_dtype"),
    "data": ("data", "data.train_files", "dataset", "train_dataset", "prompt_data"),
    "eval_data": ("eval_data", "data.val_files", "val_dataset", "eval_dataset"),
    "reward": ("reward", "reward_funcs", "custom_reward_function.path", "reward.reward_function"),
    "grad_clip": ("max_grad_norm", "grad_clip", "clip_grad"),
    "repetition_penalty": ("repetition_penalty",),
    "critic_lr": ("critic_lr", "critic.optim.lr"),
    "batch": ("batch_size", "train_batch_size", "rollout_batch_size", "rollout.batch_size"),
}
GROUPED = ("grpo", "rloo", "grpo_passk", "gpg", "rloo_vectorized", "dapo", "dr_grpo", "gspo", "cispo", "opo")
CONFIG_CALL = re.compile(r"(?:Config|Arguments|Args|Trainer|Params)$")
# what multiplies the updates of a batch in a page, and under which names a page of one's own has it
REPEATS = ("minibatches", "epochs", "ppo_epochs", "updates", "iterations", "num_iterations")
NO_SETTINGS = ("trainer_state", "summary", "results", "result", "versions", "label", "requirements")
MOST_BYTES = 2_000_000  # of a file of settings


def flat_config(config: dict, prefix: str = "") -> dict:
    """Nested settings by their dotted names."""
    flat = {}
    for key, value in config.items():
        is_folder = isinstance(value, dict) and value
        flat |= flat_config(value, f"{prefix}{key}.") if is_folder else {f"{prefix}{key}": value}
    return flat


def printed_config(text: str) -> dict:
    """verl's settings by dotted names, which it prints at the start over many lines with Ray's prefix; {} without."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    start = re.search(r"\{'actor_rollout_ref': ", plain)
    lines = []
    for line in plain[start.start() :].split("\n", 5000)[:5000] if start else []:
        line = re.sub(r"^.*?\(\w+ pid=\d+(, ip=[\d.]+)?\) ?", "", line)
        if line[:1] not in " {" and line != "":  # another process in between
            continue
        lines.append(line)
        if line.endswith("}}"):
            try:
                return flat_config(ast.literal_eval("\n".join(lines)))
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
    return {}


def shell_settings(text: str) -> dict:
    """`--flag value`, `--flag=value` and `a.b=1` of a command or shell script; its variables stand for their values."""
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


def script_settings(text: str) -> dict:
    """Literal arguments of a training script's configurations and trainers, which is parsed and never run."""
    tree, flat, constants = ast.parse(text), {}, {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
    for call in ast.walk(tree):
        name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        for keyword in call.keywords if CONFIG_CALL.search(name) and not name.endswith("LoraConfig") else []:
            value = constants.get(getattr(keyword.value, "id", ""), keyword.value)
            try:
                flat[keyword.arg] = ast.literal_eval(value)
            except (ValueError, TypeError, SyntaxError):
                flat[keyword.arg] = ast.unparse(value)
    return flat_config({key: value for key, value in flat.items() if key})


def read_settings(path: Path) -> dict:
    """The settings in a file by dotted names; {} of a file that has none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.stat().st_size < MOST_BYTES else ""
        if path.suffix == ".py":
            return script_settings(text)
        if path.suffix in (".yaml", ".yml"):
            import yaml

            loaded = yaml.safe_load(text)
        elif path.suffix == ".json":
            loaded = json.loads(text)
        else:
            return shell_settings(text)
    except (OSError, ValueError, SyntaxError, RecursionError, ImportError):
        return {}
    except Exception as error:  # of yaml, which need not be installed
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        return {}
    if isinstance(loaded, list):  # hydra's overrides
        return shell_settings("\n".join(str(item) for item in loaded))
    return {k: number_or_text(v) for k, v in flat_config(loaded).items()} if isinstance(loaded, dict) else {}


def common_settings(flat: dict) -> dict:
    """What the causes want to know of settings by their dotted names."""
    settings, extra = {}, flat.get("trainer_args") or []
    flat = flat | shell_settings(" ".join(map(str, extra))) if isinstance(extra, list) else flat
    for name, endings in NAMES_OF_SETTINGS.items():
        for ending in endings:
            keys = [key for key in flat if key == ending or ("." in key and f".{key}".endswith(f".{ending}"))]
            aside = ("val_kwargs", ".ref.") if name == "critic_lr" else ("val_kwargs", ".ref.", "critic")
            keys = [key for key in keys if not any(word in key for word in aside)]
            keys = [key for key in keys if flat[key] is not None]
            if keys and name not in settings:
                settings[name] = flat[min(keys, key=len)]
    if "learning_rate" in flat and "beta" not in flat and "num_generations" in flat:
        settings["kl"] = 0.0  # TRL's default
    return {
        name: value for name, value in settings.items() if name in ("data", "reward") or not isinstance(value, list)
    }


def verl_settings(flat: dict) -> dict:
    """What the causes want to know of verl's settings by their dotted names."""
    if not flat:
        return {}
    batch, mini = flat.get("data.train_batch_size"), flat.get(f"{ACTOR}.ppo_mini_batch_size")
    epochs, estimator = flat.get(f"{ACTOR}.ppo_epochs", 1), flat.get("algorithm.adv_estimator")
    bypass = flat.get("algorithm.rollout_correction.bypass_mode")
    known = common_settings(flat)
    if flat.get(f"{ACTOR}.use_kl_loss") is False and flat.get("algorithm.use_kl_in_reward") is False:
        known["kl"] = 0.0
    elif flat.get("algorithm.use_kl_in_reward") and not flat.get(f"{ACTOR}.use_kl_loss"):
        known["kl"] = flat.get("algorithm.kl_ctrl.kl_coef", known.get("kl"))
    return known | {
        "updates": None if bypass or not batch or not mini else epochs * max(1, batch // mini),
        "grouped": estimator in GROUPED,
        "critic_warmup": flat.get("trainer.critic_warmup") or 0,
    }


def our_settings(config: dict) -> tuple[str, dict]:
    """(trainer, what the causes want to know) of a config.json; `trainer` is "" where it does not say."""
    known = common_settings(config) | {"fp16": config.get("precision") == "fp16"}
    if not known.get("lr"):  # 0 stands for a default by size
        known.pop("lr", None)
    if "num_generations" in config:
        per_rollout = config.get("steps_per_generation", 0)
        one = config.get("num_iterations", 1) == 1 and not config.get("generation_batch_size")
        one = one and per_rollout in (0, config.get("gradient_accumulation_steps", 0))
        return "grpo_train", known | {"updates": 1 if one else None, "grouped": True}
    if "ppo_epochs" not in config:
        return "", known
    advantage = config.get("advantage") or config.get("algorithm") or "gae"
    grouped = advantage not in ("gae", "ppo", "remax", "reinforce_pp")
    return "ppo_train", known | {
        "updates": config["ppo_epochs"] * config.get("minibatches", 1),
        # a distillation's rewards may be measured only
        "grouped": bool(config.get("reward_coef")) if "teacher" in config else grouped,
        "critic_warmup": config.get("critic_warmup_steps", 0),
        "value_clip": config.get("value_clip", 0),
        "exact": config.get("precision") == "fp32" and config.get("rollout_engine") == "hf",
        "tools": bool(config.get("tool_format")),  # refused where an environment has none
    }


def page_settings(given: dict) -> dict:
    """What the causes want to know of a one-page trainer's settings.json."""
    known = common_settings(given)
    if not known.get("lr"):  # 0 stands for a default by size
        known.pop("lr", None)
    return known | {
        "grouped": "group_size" in given,
        "updates": math.prod(given.get(name) or 1 for name in REPEATS),
        "critic_warmup": given.get("critic_warmup_steps", 0),
        "value_clip": given.get("value_clip", 0),
    }


def settings_beside(folder: Path) -> tuple[Path, dict] | None:
    """The file of settings in a run's folder, and what it has; the one with most that is known."""
    found = []
    for pattern in ("*.json", "*.yaml", "*.yml", ".hydra/*.yaml", "*.py", "*.sh", "*.txt", "command*"):
        for path in sorted(folder.glob(pattern)):
            flat = read_settings(path) if path.is_file() and path.stem not in NO_SETTINGS else {}
            found.append((len(common_settings(flat)), path, flat))
    best = max(found, key=lambda entry: entry[0], default=(0, folder, {}))
    return (best[1], best[2]) if best[0] >= 3 else None


def add_settings(run: LoggedRun, folder: Path, given: str) -> None:
    """Give a run what --settings names, or else what lies beside a log whose settings are not known yet."""
    if given:
        path = Path(given)
        found = path, read_settings(path)
        if not common_settings(found[1]):
            raise UnreadableError(
                f"got --settings {given} without a setting that is known; expected YAML, JSON, a shell script or a "
                "Python script with names such as temperature, learning_rate, num_generations"
            )
    else:
        found = (
            None
            if run.settings.get("lr") or run.config.get("lr") is not None
            else next(filter(None, map(settings_beside, (folder, folder.parent))), None)
        )
    if found:
        path, flat = found
        is_verl = any(key.startswith(("actor_rollout_ref.", "data.")) for key in flat)
        known = verl_settings(flat) if is_verl else common_settings(flat)
        run.settings |= {name: value for name, value in known.items() if value is not None}
        run.config = flat | run.config
        run.settings_file = path.name
        if run.trainer == "trl" and "num_generations" in flat:
            run.settings.setdefault("grouped", True)


# ---------------------------------------------------------------------- log reading (src/parts/reading/log_reading.py)

# what of its settings TRL's trainer_state.json has
TRL_STATE = ("max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps")

# series that training of any kind has, without one that only RL has
OTHER_TRAINING = {"loss", "lr", "grad_norm", "entropy", "memory", "gpu_memory", "time_step"}


def need_log(condition, message: str) -> None:
    """Raise UnreadableError unless the condition holds."""
    if not condition:
        raise UnreadableError(message)


def as_number(value) -> float | None:
    """A float from a JSON or console value; None where it is none. numpy's `np.float64(1.5)` is read too."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        value = re.sub(r"^np\.\w+\((.*)\)$", r"\1", value.strip())
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def is_finite(value) -> bool:
    """Whether a JSON or console value is a finite number."""
    number = as_number(value)
    return number is not None and math.isfinite(number)


def step_of(row: dict) -> int:
    """The step of a log entry; 0 where it says none."""
    return int(float(as_number(row.get("step")))) if is_finite(row.get("step")) else 0


def read_text(path: Path) -> str:
    """The text of a log; a binary or empty file is refused."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"got {path} ({error.strerror}); expected a log file or a run folder") from None
    need_log(data.strip(), f"got {path}, which is empty; expected a log with at least one step")
    text = data.decode("utf-8", errors="replace")
    odd = text.count("\0") + text.count("\ufffd")
    need_log(
        odd * 50 < len(text), f"got {path}, which is binary; expected text: metrics.jsonl, trainer_state.json, a log"
    )
    return text


def rows_of_json(text: str) -> tuple[list[dict], list[int], int]:
    """Objects of a JSONL text, numbers of the lines that hold none, and how many lines are not empty."""
    rows, bad, count = [], [], 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        count += 1
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad.append(number)
    return rows, bad, count


def console_dicts(text: str) -> list[dict]:
    """The flat dicts that transformers' Trainer prints, {'loss': …}, wherever they stand in a line."""
    found = []
    for match in re.findall(r"\{'[^{}\n]*\}", text):
        try:
            row = ast.literal_eval(re.sub(r"(?<=: )(-?inf|nan)(?=[,}])", r"'\1'", match))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(row, dict) and ({*NAMES["trl"]} & {*row} or any(str(k).startswith("eval_") for k in row)):
            found.append(row)
    return found


def console_steps(text: str) -> list[dict]:
    """The lines of verl's console logger: step:N - key:value - key:value."""
    rows = []
    for step, line in re.findall(r"\bstep:(\d+) - (.+)", re.sub(r"\x1b\[[0-9;]*m", "", text)):
        pairs = [part.rpartition(":") for part in line.strip().split(" - ")]
        rows.append({"step": int(step), **{key: value for key, _, value in pairs if key}})
    return rows


def common_name(key: str, dialect: str) -> str | None:
    """The common name of a framework's metric; trackers call TRL's train/NAME and eval/NAME."""
    names = NAMES[dialect]
    key = re.sub("^eval/", "eval_", key.removeprefix("train/")) if dialect == "trl" else key
    if key in names:
        return names[key]
    if re.fullmatch(HELD_OUT[dialect], key):
        return "held_out"
    for prefix, pattern in (("part", PARTS[dialect]), ("held_out_part", HELD_OUT_PARTS[dialect])):
        if match := re.fullmatch(pattern, key):
            return f"{prefix}:{match[1]}"
    return None


def fill_series(run: LoggedRun, rows: list[dict], dialect: str) -> LoggedRun:
    """Put log rows into a run's series; a later value of a step wins, as a resumed run repeats steps."""
    run.rows, order = rows, [step_of(row) for row in rows if len(row) > 2]
    restarts = {after for before, after in itertools.pairwise(order) if 0 < after < before}
    run.settings["restarts"] = sorted(restarts)
    held_out: dict[int, list[float]] = {}
    places = {name: place for place, name in enumerate(NAMES[dialect])}
    keys = {key: common_name(str(key), dialect) for row in rows for key in row}
    ordered = sorted(keys, key=lambda key: places.get(str(key).removeprefix("train/"), len(places)))
    for row in rows:
        step, taken = step_of(row), set()
        for key in ordered:
            name, value = keys[key], as_number(row.get(key))
            if name is None or value is None or (name in taken and name != "held_out"):
                continue
            taken.add(name)
            if not math.isfinite(value):
                run.broken.append((str(key), step, value))
                continue
            run.names.setdefault(name, str(key))
            if name == "held_out" and dialect == "verl":  # one key per data source: their mean
                held_out.setdefault(step, []).append(value)
                value = statistics.fmean(held_out[step])
            run.series.setdefault(name, {})[step] = value
        held_out.pop(step, None)
    return run


def drop_padded(run: LoggedRun) -> LoggedRun:
    """Leave out verl's clip_ratio where the limit was not reached: its V1 trainer pads to the longest of the batch."""
    longest = run.series.get("length_max", {})
    limit = run.settings.get("max_length")
    if not limit and longest:  # a length that half the steps reach and none exceeds is taken for the limit
        top = max(longest.values())
        limit = top if sum(value == top for value in longest.values()) * 2 >= max(len(longest), 4) else math.inf
    for step, value in longest.items():
        if limit and value < limit and step in run.series.get("truncated", {}):
            run.series["truncated"][step] = 0.0
    return run


def numbered(rows: list[dict]) -> list[dict]:
    """Give rows without a step the count of training entries so far."""
    step = 0
    for row in rows:
        is_training = any(not (common_name(str(key), "trl") or "held_out").startswith("held_out") for key in row)
        given = step_of(row) or step_of({"step": row.get("train/global_step")})
        step = given or (step + 1 if is_training else step)
        row["step"] = step
    return rows


def parse(path: Path, text: str, columns: dict[str, str]) -> LoggedRun:
    """Read any of the formats, or what stands in the named columns."""
    (rows, bad, count), history, config = rows_of_json(text), [], {}
    try:
        state = json.loads(text) if text.lstrip()[:1] == "{" else {}
        history = [row for row in state.get("log_history") or [] if isinstance(row, dict)]
        config = {key: state[key] for key in TRL_STATE if state.get(key) is not None}
    except (ValueError, RecursionError, AttributeError, TypeError):
        pass
    if columns:
        return parse_columns(path, history or rows or console_steps(text) or plain_rows(text), columns)
    if history:
        return fill_series(LoggedRun(str(path), "trainer_state.json", "trl", config=config), numbered(history), "trl")
    if rows and len(rows) * 2 >= count:
        run = parse_rows(path, rows)
        if bad:
            torn = bad == [count] or (len(bad) == 1 and not text.endswith("\n"))
            flaw = "the last line is torn" if torn else f"{len(bad)} of {count} lines are no JSON"
            run.remarks.append(f"{flaw} (line {bad[0]}); left out")
        return run
    rows = console_steps(text)
    if rows:
        config = printed_config(text)
        run = LoggedRun(str(path), "verl console", "verl", settings=verl_settings(config), config=config)
        return drop_padded(fill_series(run, rows, "verl"))
    rows = console_dicts(text)
    if rows:
        run = LoggedRun(str(path), "TRL console", "trl")
        run.remarks.append("the console shows no steps: they are counted entries")
        return fill_series(run, numbered(rows), "trl")
    rows = plain_rows(text)
    need_log(
        rows,
        f"got {path}, in none of the formats; expected metrics.jsonl, trainer_state.json, TRL's or verl's console "
        "output, verl's file log, a CSV file, or lines of name=value; try the run's folder",
    )
    return parse_rows(path, rows)


def parse_columns(path: Path, rows: list[dict], columns: dict[str, str]) -> LoggedRun:
    """A run of rows whose figures have the names that --columns gives; findings name these."""
    rows = renamed([row | row["data"] if isinstance(row.get("data"), dict) else row for row in rows], columns, path)
    run = fill_series(LoggedRun(str(path), NAMED_COLUMNS, "trl"), numbered(rows), "trl")
    given = {FIGURES[figure]: column for figure, column in columns.items()}
    run.names = {name: given.get(key, key) for name, key in run.names.items()}
    return run


def parse_rows(path: Path, rows: list[dict]) -> LoggedRun:
    """A run from JSONL rows: verl's file logger, our metrics.jsonl, or TRL entries."""
    if all(isinstance(row.get("data"), dict) for row in rows):
        flat = [{**row["data"], "step": row.get("step")} for row in rows]
        return drop_padded(fill_series(LoggedRun(str(path), "verl file log", "verl"), flat, "verl"))
    keys = {key for row in rows for key in row}
    if keys & set(OURS):
        trainer = "grpo_train" if "time/step" in keys else "ppo_train"
        trainer = trainer if "optim/lr" in keys else "one_page"  # whose rates never change
        if "kl/teacher" in keys:  # a distillation's loss is a divergence, of which the remarks on PPO's do not hold
            rows = [
                {key: value for key, value in row.items() if key != "policy/loss" or not is_finite(value)}
                for row in rows
            ]
        if trainer == "one_page":
            rows = [without_policy(row) if is_critic_only(row) else row for row in rows]
        return fill_series(LoggedRun(str(path), "metrics.jsonl", trainer), rows, "ours")
    if len(keys & {*NAMES["verl"]}) >= max(1, len(keys & {*NAMES["trl"]})):
        return drop_padded(fill_series(LoggedRun(str(path), "verl log entries", "verl"), rows, "verl"))
    return fill_series(LoggedRun(str(path), "TRL log entries", "trl"), numbered(rows), "trl")


def is_critic_only(row: dict) -> bool:
    """Whether a page's step trained the critic only: the policy's gradient is 0 then."""
    return "value/loss" in row and row.get("optim/grad_norm") == 0


def without_policy(row: dict) -> dict:
    """A row without what it says of the policy's update."""
    return {k: v for k, v in row.items() if not k.startswith("policy/") and k not in ("kl/approx", "optim/grad_norm")}


def log_of_folder(folder: Path) -> Path:
    """The log inside a run's folder."""
    for name in ("metrics.jsonl", "trainer_state.json"):
        if (folder / name).exists():
            return folder / name
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda p: p.stat().st_mtime)
    others = sorted([*folder.glob("*.jsonl"), *folder.glob("*.log")])
    runs = sorted({p.parent for name in ("metrics.jsonl", "trainer_state.json") for p in folder.glob(f"*/{name}")})
    need_log(
        states or others or not runs,
        f"got {folder}, which holds {len(runs)} runs; expected one; try diagnose.py {' '.join(map(str, runs[:3]))}",
    )
    need_log(
        states or len(others) == 1,
        f"got {folder} with {', '.join(p.name for p in others[:5]) or 'no log'}; expected metrics.jsonl, "
        "trainer_state.json, checkpoint-*/trainer_state.json or one .jsonl or .log; try the file itself",
    )
    return states[-1] if states else others[0]


def starts_of(path: Path) -> list[Path]:
    """The logs of all starts of a run that verl resumed, metrics.jsonl, metrics.2.jsonl …; empty ones are left out."""
    if path.name != "metrics.jsonl":
        return [path]
    numbers = [re.fullmatch(r"metrics\.(\d+)\.jsonl", other.name) for other in path.parent.glob("metrics.*.jsonl")]
    found = sorted(int(number[1]) for number in numbers if number)
    starts = [path, *(path.with_name(f"metrics.{n}.jsonl") for n in found)]
    return [start for start in starts if start.stat().st_size] or [path]


def samples_beside(path: Path, run: LoggedRun) -> list[dict]:
    """The rows of samples.jsonl, read line by line, as it may be large; what cannot be read is remarked."""
    other, rows, bad, names = path.with_name("samples.jsonl"), [], [], {}
    if not other.is_file():
        return []
    with other.open("rb") as file:
        for number, line in enumerate(file, start=1):
            found, _, filled = rows_of_json(line.decode("utf-8", errors="replace").rstrip("\n"))
            rows += [{names.setdefault(key, key): value for key, value in row.items()} for row in found]
            bad += [number] if filled and not found else []
    if bad and rows:
        run.remarks.append(f"samples.jsonl beside it: {len(bad)} lines are no JSON (line {bad[0]}); left out")
    elif bad or not rows:
        run.remarks.append("samples.jsonl beside it could not be read")
    return rows


def beside(path: Path, name: str, run: LoggedRun) -> list[dict]:
    """The object of a file beside the log; what cannot be read is remarked."""
    other = path.with_name(name)
    if not other.exists():
        return []
    try:
        return [dict(json.loads(read_text(other)))]
    except (UnreadableError, ValueError, TypeError, RecursionError):
        run.remarks.append(f"{name} beside it could not be read")
        return []


def add_dumps(run: LoggedRun, path: Path) -> None:
    """Give a run of TRL or verl the settings and samples that lie beside its log."""
    folder, console = path.parent, path.with_name("verl.log")
    if run.trainer == "trl":
        folder = folder.parent if re.fullmatch(r"checkpoint-\d+", folder.name) else folder
        run.samples, remarks = trl_samples(folder, run.rows)
    else:
        if not run.config and console.is_file() and console != path:  # verl_train.py's, beside verl's file log
            run.config = printed_config(console.read_text(encoding="utf-8", errors="replace"))
            run.settings = verl_settings(run.config)
        run.samples, remarks = verl_samples(folder, run.config)
    run.samples = run.samples or samples_beside(path, run)
    run.remarks += remarks


@dataclass
class Extras:
    """What a user names beside a log: files of settings, samples, data and rewards, and the group size."""

    settings: str = ""
    samples: str = ""
    data: str = ""
    reward: str = ""
    group_size: int = 0


def load_run(source: str, columns: dict[str, str] | None = None, extras: Extras | None = None) -> LoggedRun:
    """Read a run from a file or folder, with its settings and samples.

    Args:
        source: the file or folder.
        columns: names in this log of figures of FIGURES.
        extras: what lies elsewhere.
    """
    path, later, extras = Path(source), [], extras or Extras()
    if path.is_dir():
        path, *later = starts_of(log_of_folder(path))
    run = parse(path, "\n".join(map(read_text, [path, *later])), columns or {})
    if later:
        run.remarks.append(f"{1 + len(later)} starts, to {later[-1].name}: steps run again count as run last")
    if run.format == "metrics.jsonl":
        run.samples = samples_beside(path, run)
        for config in beside(path, "config.json", run):
            trainer, run.settings = our_settings(config)
            run.trainer, run.config = trainer or run.trainer, config
        for given in beside(path, "settings.json", run) if run.trainer == "one_page" else []:
            run.settings, run.config = page_settings(given), given
    if run.trainer in ("trl", "verl"):
        add_dumps(run, path)
    folder = path.parent.parent if re.fullmatch(r"checkpoint-\d+", path.parent.name) else path.parent
    add_settings(run, folder if Path(source).is_dir() or extras.settings else Path(), extras.settings)
    if extras.group_size:
        run.settings["group_size"] = extras.group_size
    need_log(
        run.steps() or run.broken,
        f"got {path} ({run.format}) without a training metric that is known; expected a step of training, with "
        f"names such as {', '.join(list(NAMES[dialect_of(run)])[:3])}; it has {', '.join(names_in(run)[:12])}; try "
        "diagnose.py --columns reward=NAME",
    )
    need_log(
        run.broken or not OTHER_TRAINING.issuperset(run.series),
        f"got {path} with {', '.join(names_in(run)[:8])} and no score: a log of another kind of training, such as "
        "SFT; expected a run of RL; try diagnose.py --columns reward=NAME where a column is the score",
    )
    for flag, file in (("data", extras.data), ("reward", extras.reward.rpartition(":")[0] or extras.reward)):
        need_log(not file or Path(file).is_file(), f"got --{flag} {file}, which does not exist; expected a file")
    if extras.samples:
        run.samples = rows_of_samples(Path(extras.samples))
    add_texts(run, extras.data, folder)
    need_log(
        run.texts or not extras.samples,
        f"got --samples {extras.samples} with {', '.join(map(str, [*(run.samples or [{}])[0]][:8]))}; expected prompt, "
        "completion and score; try other names for its columns",
    )
    run.reward_source = source_of_reward(extras.reward, run, folder)
    return run


def names_in(run: LoggedRun) -> list[str]:
    """The names of all figures in a log."""
    return [*dict.fromkeys(str(key) for row in run.rows for key, value in row.items() if is_finite(value))]


def add_texts(run: LoggedRun, data: str, folder: Path) -> None:
    """Give a run its samples as causes read them, with gold answers of its data and of data files beside the log."""
    rows = data_rows(data or str(run.settings.get("data") or ""), folder)
    others = data_rows(str(run.settings.get("eval_data") or ""), folder)
    if run.samples and not rows:
        beside = [path for place in (folder, folder.parent) for path in sorted(place.glob("*.jsonl"))]
        named = [path for path in beside if re.search("train|data|eval|test", path.stem)][:6]
        rows = [row for path in named if "train" in path.stem for row in data_rows(str(path), folder)]
        others = [row for path in named if "train" not in path.stem for row in data_rows(str(path), folder)]
    golds = [{prompt: gold for prompt, row in part if (gold := gold_of(row)) is not None} for part in (others, rows)]
    run.golds, run.settings["rows"] = golds[1], len({prompt for prompt, _ in rows})
    run.texts = sample_texts(run.samples, golds[0] | golds[1])


def data_rows(data: str, folder: Path) -> list[tuple[str, dict]]:
    """(prompt, row) of a data file; none where it cannot be read."""
    paths = [Path(data), folder / data, folder / Path(data).name, folder.parent / Path(data).name] if data else []
    path = next((path for path in paths if path.is_file()), None)
    rows = rows_of_samples(path) if path and path.suffix in (".jsonl", ".json", ".csv", ".parquet") else []
    return [(prompt, row) for row in rows if (prompt := plain_text(row.get("prompt")))]


def source_of_reward(spec: str, run: LoggedRun, folder: Path) -> str:
    """The code of the reward for correctness: of files that settings name, or of scripts beside the log."""
    named = run.settings.get("reward") or []
    specs = [spec] if spec else [named] if isinstance(named, str) else [item for item in named if isinstance(item, str)]
    pairs = [item.partition("*")[0].rpartition(":")[::2] for item in specs]
    pairs.sort(key=lambda pair: not names_correctness(pair[1]))
    for file, name in pairs:
        for path in (Path(file), folder / Path(file).name, folder.parent / Path(file).name):
            if path.suffix == ".py" and path.is_file():
                return function_of(path, name)
    scripts = [path for place in (folder, folder.parent) for path in sorted(place.glob("*.py"))[:20]]
    words = " ".join(specs)
    return next(filter(None, (function_of(path, words) for path in scripts)), "")


def function_of(path: Path, words: str) -> str:
    """The code of a file's reward for correctness, named in some words or found by what it takes, and what it uses."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        nodes = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        named = [node.name for node in nodes if node.name in re.findall(r"\w+", words)]
        takes = [node.name for node in nodes if {argument.arg for argument in node.args.args} & COMPLETIONS]
        tree = ast.walk(ast.parse(text))
        called = {ast.unparse(node.func) for node in tree if isinstance(node, ast.Call)}
        chosen = named or [name for name in takes if name not in called]
        chosen.sort(key=lambda name: not names_correctness(name))
        return extract(text, chosen[:1]) if chosen else ""
    except (OSError, SyntaxError, ValueError, KeyError):
        return ""


def dialect_of(run: LoggedRun) -> str:
    """Whose metric names a run's log has."""
    return run.trainer if run.trainer in ("trl", "verl") else "ours"


# ---------------------------------------------------------------------------------- cause (src/parts/reading/cause.py)

CERTAIN, LIKELY, WEAK = 0.9, 0.6, 0.4  # strengths of evidence; below LIKELY a cause is named only beside another

# signs of a run that learns nothing, and of one that loses what it had
STILL = "flat_score constant_scores equal_groups zero_gradient held_out_flat critic_explains_little"
LOST = (
    "score_fell clipped kl_high entropy_fell entropy_rose length_fell length_rose truncated repetition gradient_spike"
)


@dataclass(frozen=True)
class Fact:
    """One piece of evidence: what was seen, in which figure, at which step, in which samples."""

    text: str
    figure: str = ""
    step: int | None = None
    samples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What speaks for a cause, and how strongly; `since` is the step from which the run is broken."""

    strength: float
    facts: list[Fact] = field(default_factory=list)
    since: int | None = None


@dataclass(frozen=True)
class Cause:
    """A root cause; a new one is a file in this folder, and its line in `ranking.py`.

    `explains` has the names of signs, and of causes that follow from this one. `breaks` says that a run with it is
    broken, not only without a gain.
    """

    name: str
    says: str
    test: Callable[[LoggedRun], Evidence | None]
    explains: str
    change: str
    decide_with: str
    source: str
    breaks: bool = False


def fact(run: LoggedRun, series: str, text: str, step: int | None = None, samples=()) -> Fact:
    """A fact about a series under its name in the log; without a step, its last one."""
    points = run.series.get(series, {})
    return Fact(text, run.name(series), max(points, default=None) if step is None else step, tuple(samples)[:8])


def shown(texts, text: str) -> Fact:
    """A fact about samples, of which the first three are named."""
    return Fact(text, "samples", texts[0].step if texts else None, tuple(t.id for t in texts[:3]))


# ---------------------------------------------------------------------------------- signs (src/parts/reading/signs.py)

# sign, series, share of the first stretch beyond which the last lies, least distance
MOVES = (
    ("length_rose", "length", 1.5, 0.0),
    ("length_fell", "length", 0.5, 0.0),
    ("entropy_fell", "entropy", 0.2, 0.01),
    ("entropy_rose", "entropy", 2.0, 0.2),
)


def moves(run: LoggedRun) -> Iterator[tuple[str, Fact]]:
    """Length or entropy that moves far."""
    sharp = is_solved(run) or rises_late(run) or any("kl/teacher" in row for row in run.rows)
    for name, series, share, least in MOVES:
        values, way = run.values(series), 1 if share > 1 else -1
        if trend(values) != way or gained(run) or (name == "entropy_fell" and sharp):
            continue
        first, last = ends(values)
        if way * (last - share * first) > 0 and way * (last - first) > least:
            yield name, fact(run, series, f"{run.name(series)} went from {first:.4g} to {last:.4g}")


def levels(run: LoggedRun) -> Iterator[tuple[str, Fact]]:
    """Figures that lie where they should not."""
    late = {name: run.last(name) for name in ("zero_std", "truncated", "kl", "explained_variance", "clip_frac")}
    if late["zero_std"] >= 0.8 and not is_solved(run):
        yield "equal_groups", fact(run, "zero_std", f"{late['zero_std']:.0%} of the groups score all alike")
    if late["truncated"] >= 0.2:
        yield "truncated", fact(run, "truncated", f"{late['truncated']:.0%} of the completions are cut")
    if late["kl"] > 0.3 and not (gained(run) and rises_late(run)):
        yield "kl_high", fact(run, "kl", f"{run.name('kl')} is {late['kl']:.3g} nats a token")
    if late["clip_frac"] > 0.3:
        yield "clipped", fact(run, "clip_frac", f"{late['clip_frac']:.0%} of the tokens are clipped")
    if late["explained_variance"] < 0.03 and len(run.steps()) >= TREND_STEPS:
        text = f"the critic explains {late['explained_variance']:.2g} of the returns' variance"
        yield "critic_explains_little", fact(run, "explained_variance", text)
    if run.series.get("grad_norm") and len(run.values("grad_norm")) >= 3 and run.last("grad_norm") == 0:
        yield "zero_gradient", fact(run, "grad_norm", f"{run.name('grad_norm')} is 0")
    gap = next((name for name, limit in (("mismatch_kl", 0.01), ("gap_mean", 0.049)) if run.last(name) > limit), "")
    if gap:
        yield "sampler_gap", fact(run, gap, f"{run.name(gap)} is {run.last(gap):.3g}")


def signs(run: LoggedRun) -> dict[str, Fact]:
    """Every sign of a run, in the order of the table above."""
    seen, scores, lost = {}, run.values("score"), collapse(run)
    if is_constant(run):
        seen["constant_scores"] = fact(
            run, "score", f"all completions of nearly every step scored {run.last('score'):.4g}"
        )
    elif lost:
        seen["score_fell"] = fact(run, "score", f"the score fell from {lost[0]:.3g} to {lost[1]:.3g}", lost[2])
    elif is_flat(scores) and not is_solved(run):
        seen["flat_score"] = fact(run, "score", f"the score is flat over {len(scores)} steps")
    held_out = run.values("held_out")
    if len(held_out) >= 2 and not gained(run) and not is_solved(run):
        text = f"the held-out figure went from {held_out[0]:.3g} to {held_out[-1]:.3g}"
        seen["held_out_flat"] = fact(run, "held_out", text)
    seen |= dict(levels(run)) | dict(moves(run))
    last = [t for t in run.texts if t.kind == "train" and t.step == max(t.step for t in run.texts)]
    if last and statistics.median(repeats(t.completion) for t in last) > 0.5:
        seen["repetition"] = Fact("half of the last completions repeat themselves", "samples", last[0].step)
    spike = largest_spike(run)
    if spike:
        seen["gradient_spike"] = fact(run, "grad_norm", f"a gradient of {spike[1]:.3g} at step {spike[0]}", spike[0])
    return seen


def largest_spike(run: LoggedRun) -> tuple[int, float] | None:
    """(step, norm) of the largest gradient that is above 1 and ten times the median of the 20 steps before it."""
    norms, spikes = sorted(run.series.get("grad_norm", {}).items()), []
    for i in range(5, len(norms)):
        before = statistics.median(value for _, value in norms[max(0, i - 20) : i])
        if norms[i][1] > 1 and norms[i][1] > 10 * before > 0.01:
            spikes.append(norms[i])
    return max(spikes, key=lambda spike: spike[1]) if len(spikes) >= max(1, 0.02 * len(norms)) else None


# --------------------------------------------------------------------- overflow (src/parts/reading/causes/overflow.py)

WATCHED = ("loss", "grad_norm", "kl", "entropy", "value_loss", "score")


def find_overflow(run: LoggedRun) -> Evidence | None:
    """The first value that is not finite; skipped updates, in fp16 only where a fifth of the steps has them."""
    names = {key for dialect in NAMES.values() for key, name in dialect.items() if name in WATCHED}
    bad = [entry for entry in run.broken if entry[0].removeprefix("train/") in names]
    if bad:
        metric, step, value = bad[0]
        return Evidence(
            0.99, [Fact(f"{metric} is {value} at step {step}, {len(bad)} such values in all", metric, step)], step
        )
    large = next((step for step, value in sorted(run.series.get("score", {}).items()) if abs(value) > 1e15), None)
    if large is not None:
        text = f"{run.name('score')} is {run.series['score'][large]:.3g}; squares of such scores overflow in float32"
        return Evidence(CERTAIN + 0.08, [Fact(text, run.name("score"), large)], large)
    skipped = run.series.get("skipped", {})
    steps = [step for step, value in sorted(skipped.items()) if value]
    allowed = 0.2 if run.settings.get("fp16") else 0.01  # fp16's loss scale settles that way
    if steps and len(steps) > allowed * len(skipped):
        text = f"{len(steps)} steps left updates out because a gradient was not finite, first step {steps[0]}"
        return Evidence(CERTAIN + 0.07, [Fact(text, run.name("skipped"), steps[0])], steps[0])
    return None


OVERFLOW = Cause(
    "overflow",
    "numbers overflow: an update too large, a log-prob of -inf, or fp16",
    find_overflow,
    f"{STILL} {LOST} nothing_moves updates_too_large constant_reward critic_useless too_hard",
    "{precision}; keep {grad_clip} at 1; lower {lr}; go on from a checkpoint before this step",
    "",
    "definition; unsloth#3006, verl#2505",
    breaks=True,
)


# ------------------------------------------------------- jump at restart (src/parts/reading/causes/jump_at_restart.py)


def jumps_at(run: LoggedRun, step: int, least: float) -> list[Fact]:
    """Figures whose five steps from a step on lie beyond those before it, and nearer to the run's start."""
    facts = []
    for name in ("entropy", "score", "length"):
        points = sorted(run.series.get(name, {}).items())
        before = [value for at, value in points if at < step][-6:]
        after = [value for at, value in points if at >= step][:3]
        if len(before) < 4 or len(after) < 2:
            continue
        a, b, start = (statistics.median(values) for values in (before, after, [v for _, v in points[:3]]))
        scatter = max(noise(before), 0.05 * abs(a), 1e-6)
        if abs(b - a) > least * scatter and (b - a) / (start - a or 1e-9) >= 0.6 and abs(start - a) > least * scatter:
            facts.append(
                fact(run, name, f"{run.name(name)} goes from {a:.3g} back to {b:.3g}, where the run began", step)
            )
    return facts


def restart_steps(run: LoggedRun) -> list[int]:
    """Steps at which the log itself shows a restart: they come again, the rate's schedule or the KL begins anew."""
    steps = list(run.settings.get("restarts", ()))
    rates = sorted(run.series.get("lr", {}).items())
    falling = [
        i for i in range(3, len(rates)) if rates[i - 2][1] > rates[i - 1][1] and rates[i][1] > 1.5 * rates[i - 1][1]
    ]
    kl = sorted(run.series.get("kl", {}).items())
    kl = kl if kl and abs(kl[0][1]) < 1e-6 and sum(abs(value) < 1e-6 for _, value in kl) < 4 else []
    anew = []
    for i in range(3, len(kl) - 1):
        before, after = [abs(value) for _, value in kl[max(1, i - 4) : i]], [abs(value) for _, value in kl[i : i + 4]]
        # it grows again from 0; a single 0 among values that scatter is chance
        if after[0] < 1e-6 < 1e-4 < min(before) and max(after) < 0.5 * statistics.median(before):
            anew.append(i)
    return steps + [rates[i][0] for i in falling] + [kl[i][0] for i in anew]


def find_jump_at_restart(run: LoggedRun) -> Evidence | None:
    """Figures jump where the log shows a restart; without one, two of them go back to the run's start in one step."""
    restarts = restart_steps(run)
    for step in sorted({*restarts, *run.steps()[5:-2]}):
        facts = jumps_at(run, step, 1.5 if step in restarts else 6)
        if step in restarts:
            said = Fact(f"the log shows a restart at step {step}", "step", step)
            again = step in run.settings.get("restarts", ())
            if facts or not again:  # a schedule or a KL that begins anew is a jump by itself
                return Evidence(CERTAIN + 0.06 if facts else LIKELY + 0.1, [said, *facts], since=step)
        elif len(facts) > 1 and facts[0].figure == run.name("entropy"):
            return Evidence(CERTAIN + 0.06, facts, since=step)
    return None


JUMP_AT_RESTART = Cause(
    "jump_at_restart",
    "the run jumps at a restart: weights, optimizer, schedule, data order or settings are not those before it",
    find_jump_at_restart,
    f"{STILL} {LOST} updates_too_large part_dies critic_useless stale_weights part_bought memorised_prompts",
    "resume from the run's own newest checkpoint with its optimizer and the same settings (--resume)",
    "",
    "an exact resume gives the figures of an uninterrupted run; six times the scatter: our heuristic",
    breaks=True,
)


# --------------------------------------------------------------------- too hard (src/parts/reading/causes/too_hard.py)


def pass_rate(run: LoggedRun, steps: int = EARLY) -> tuple[str, float, float, float] | None:
    """(part, share that passes in the first steps, its 95 % interval), of a part whose means lie between 0 and 1."""
    name, means = first_part(run)
    early = means[:steps]
    if not early or min(means) < 0 or max(means) > 1:
        return None
    count, rate = int(run.number("batch") or 32) * len(early), sum(early) / len(early)
    return name, rate, *wilson_interval(rate * count, count)


def find_too_hard(run: LoggedRun) -> Evidence | None:
    """Next to none of the run's completions passes, and those that are logged do not hold their gold answer."""
    rate = pass_rate(run, steps=10**9)
    if not rate or rate[1] > 0.002 or rate[3] > 0.03:
        return None
    text = f"{rate[0]} passes {rate[1]:.2%} of all completions (95 %: {rate[2]:.2%} to {rate[3]:.2%})"
    facts = [fact(run, f"part:{rate[0]}" if run.parts() else "score", text, min(run.steps()))]
    known = [t for t in run.texts if t.gold and t.score is not None]
    without = [t for t in known if not holds(t.completion, t.gold)]
    if len(known) >= 8 and len(without) >= 0.9 * len(known):
        facts.append(shown(without, f"{len(without)} of {len(known)} logged completions do not hold the gold answer"))
        return Evidence(CERTAIN + 0.01, facts)
    return Evidence(LIKELY if not known else LIKELY - 0.2, facts)


TOO_HARD = Cause(
    "too_hard",
    "the prompts are too hard for this model: no completion is right, so nothing can be reinforced",
    find_too_hard,
    f"{STILL} no_group_variance nothing_moves critic_useless too_sparse kl_holds_policy constant_reward part_bought",
    "easier prompts, partial credit, or a warm start (scripts/warm_start.py)",
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL",
    "Wilson's interval; groups alike with p^G + (1 - p)^G",
)


# --------------------------------------------- near greedy sampling (src/parts/reading/causes/near_greedy_sampling.py)

# setting: (bound, whether a value below it is near greedy, what is off)
SAMPLING_BOUNDS = {"temperature": (0.3, True), "top_p": (0.5, True), "top_k": (4, True), "min_p": (0.5, False)}


def sharp_settings(run: LoggedRun) -> list[Fact]:
    """Settings that leave nearly every token one choice."""
    facts = []
    for name, (bound, below) in SAMPLING_BOUNDS.items():
        value = run.number(name)
        off = value is None or (name == "top_k" and value <= 0)
        if not off and (value < bound if below else value > bound):
            facts.append(Fact(f"{name} is {value:g}", name))
    if run.settings.get("do_sample") is False:
        facts.append(Fact("do_sample is false", "do_sample"))
    return facts


def groups_of_one_prompt(texts: list[Text]) -> list[list[Text]]:
    """Completions of the same prompt at the same early step, four and more."""
    train = [t for t in texts if t.kind == "train"]
    first = sorted({t.step for t in train})[:2]
    ordered = sorted((t for t in train if t.step in first), key=lambda t: (t.step, t.prompt))
    groups = [list(group) for _, group in itertools.groupby(ordered, key=lambda t: (t.step, t.prompt))]
    return [group for group in groups if len(group) >= 4]


def alike_at_pass_rate(run: LoggedRun) -> Fact | None:
    """Groups of 0/1 scores that are alike from the start at a middling pass rate: as copies of one completion are."""
    alike, rate, spreads = run.early("zero_std"), pass_rate(run), run.early("score_std")
    if len(alike) < 3 or not rate or not 0.1 < rate[1] < 0.9 or not spreads:
        return None
    expected, share = forecast(rate[1], int(run.number("group_size") or 8)), sum(alike) / len(alike)
    _, part = first_part(run)
    binary = len(run.parts()) > 1 or all(
        abs(spread - math.sqrt(max(0.0, mean * (1 - mean)))) < 0.1 for spread, mean in zip(spreads, part, strict=False)
    )
    if share < 0.8 or share < expected + 0.25 or not binary:
        return None
    text = (
        f"{share:.0%} of the groups score all alike at a pass rate of {rate[1]:.2g}, where chance gives {expected:.0%}"
    )
    return fact(run, "zero_std", text, min(run.steps()))


def find_near_greedy_sampling(run: LoggedRun) -> Evidence | None:
    """Settings say so; without them, identical completions of a prompt, or an entropy of nearly 0, from the start."""
    facts, groups = sharp_settings(run), groups_of_one_prompt(run.texts)
    alike = [group for group in groups if len({t.completion for t in group}) == 1]
    entropy = run.early("entropy", 3)
    same = (
        shown(alike[0], f"all {len(alike[0])} completions of a prompt are identical at step {alike[0][0].step}")
        if alike
        else None
    )
    if facts:
        return Evidence(CERTAIN + 0.05, facts + ([same] if same else []))
    if run.number("temperature") is not None and run.number("temperature") >= 0.5:
        return None
    rate = pass_rate(run, steps=3)
    able = rate is not None and rate[2] > 0.8  # a model that is right is sure of it
    if entropy and not able and max(entropy) < 0.02 and min(run.series["entropy"]) <= EARLY:
        said = fact(run, "entropy", f"{run.name('entropy')} of the first steps is {max(entropy):.2g} nats a token", 1)
        return Evidence(LIKELY + 0.2, [said] + ([same] if same else []))
    if same and len(alike) == len(groups) and groups[0][0].step <= EARLY:
        return Evidence(LIKELY, [same])
    share = alike_at_pass_rate(run) if not groups else None
    return Evidence(LIKELY + 0.25, [share]) if share else None


NEAR_GREEDY_SAMPLING = Cause(
    "near_greedy_sampling",
    "sampling is nearly greedy: completions of a prompt hardly differ, so neither do their scores",
    find_near_greedy_sampling,
    f"{STILL} entropy_fell sampler_gap kl_high clipped no_group_variance nothing_moves too_hard too_easy "
    "too_sparse critic_useless sampler_mismatch updates_too_large part_bought",
    "{temperature} 1.0, top-p 1, top-k and min-p off, also for models whose card advises less for use",
    "python scripts/diagnose.py RUN --settings FILE --samples FILE",
    "definition: equal scores in a group give advantage 0; limits 0.3, 0.5, 4: our heuristic",
)


# --------------------------------------------------------------- answer form (src/parts/reading/causes/answer_form.py)


def unpaid_with_gold(texts: list[Text]) -> list[Text]:
    """Completions that hold their gold answer and are not paid for it, where they are most of those that hold it.

    [] where others hold the gold of another row as often, or where a quarter of those with their gold is paid.
    """
    known = [t for t in early_texts(texts) if t.gold and correct_pay(t) is not None]
    pays = [correct_pay(t) for t in known]
    lowest = min(pays, default=0.0)
    if lowest > 1e-9 and max(pays) - lowest <= 1e-9:
        return []  # all are paid
    holders = [t for t in known if holds(t.completion, t.gold)]
    unpaid = [t for t in holders if correct_pay(t) <= lowest + 1e-9]
    golds = [t.gold for t in known]
    pairs = zip(known, golds[len(golds) // 2 :] + golds[: len(golds) // 2], strict=True)
    chance = sum(holds(t.completion, gold) for t, gold in pairs if gold != t.gold)
    return unpaid if len(unpaid) >= max(3, 3 * chance, 0.75 * len(holders)) else []


def marks_with_gold(texts: list[Text]) -> set[str]:
    """Marks in which completions hold their gold answer."""
    return {mark for t in texts for mark, answer in marked_answers(t.completion) if holds(answer, t.gold)}


def find_answer_form(run: LoggedRun) -> Evidence | None:
    """Gold stands in unpaid completions, in no mark that the reward's source names; or it reads no mark asked for."""
    reads, asks, unpaid = source_marks(run.reward_source), asked_marks(run.texts), unpaid_with_gold(run.texts)
    other = [Fact(f"prompts ask for {', '.join(sorted(asks))}, the reward reads {', '.join(sorted(reads))}", "reward")]
    other = other if reads and asks and not reads & asks else []
    if not unpaid:
        return Evidence(LIKELY, other) if other and run.values("score") and max(run.early("score")) <= 0.05 else None
    used = marks_with_gold(unpaid)
    if used & reads:
        return None  # it stands where the reward looks: the comparison is at fault
    where = f", marked by {', '.join(sorted(used)) or 'nothing'}; the reward reads {', '.join(sorted(reads))}"
    text = f"{len(unpaid)} unpaid completions hold the gold answer{where if reads else ''}"
    return Evidence(CERTAIN + 0.05 if reads else LIKELY + 0.1, [shown(unpaid, text), *other])


ANSWER_FORM = Cause(
    "answer_form",
    "the answer's form is not the one that the reward reads: right answers are not paid",
    find_answer_form,
    f"{STILL} {LOST} constant_reward too_hard too_sparse nothing_moves no_group_variance critic_useless part_bought "
    "reward_ignores_answer memorised_prompts updates_too_large",
    "ask in the prompt for the form that the reward reads, or have the reward read the form that completions have",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "counting, against gold answers of other rows; open-r1#255, verl#2150",
)


# ----------------------------------------------------------- gold mismatch (src/parts/reading/causes/gold_mismatch.py)

OTHER_ROW = re.compile(r"\b(answers?|golds?|targets?|solutions?|ground_truth|labels?)\[(\d+|-1|::-1)\]")


def shifted_gold(run: LoggedRun) -> Fact | None:
    """Completions state the gold of the row some places on in the data, the same number of places each time."""
    prompts, golds = list(run.golds), list(run.golds.values())
    places, votes = {prompt: i for i, prompt in enumerate(prompts)}, Counter()
    train = {(t.prompt, t.completion): t for t in run.texts if t.prompt in places}.values()
    for t in train:
        answer, place = stated_answer(t.completion, bool(NUMBER.fullmatch(golds[places[t.prompt]]))), places[t.prompt]
        votes.update(k for k in range(-60, 61) if golds[(place + k) % len(golds)] == answer)
    (best, count), *others = [*votes.most_common(2), (0, 0)] if votes else [(0, 0)]
    if not best or len(golds) < 20 or count < max(4, 2 * others[0][1], 3 * votes[0], 0.2 * len(train)):
        return None
    return shown(
        list(train), f"{count} of {len(train)} completions state the gold answer of the row {best:+d} places away"
    )


def unlike_held_out(run: LoggedRun) -> Fact | None:
    """Held-out completions are paid from the start, training ones hardly, by the same reward."""
    name, means = first_part(run)
    held_out, early = (
        run.early(f"held_out_part:{name}", 1) or run.early("held_out", 1),
        means[:1],
    )  # later a policy may be lost
    if not held_out or not early or not 0 < held_out[0] <= 1 or min(early) < 0 or max(early) > 1:
        return None
    count, rate = int(run.number("batch") or 32) * len(early), sum(early) / len(early)
    if wilson_interval(rate * count, count)[1] > 0.35 * wilson_interval(held_out[0] * 64, 64)[0]:
        return None
    text = f"at the start {name} pays {rate:.3g} in training and {held_out[0]:.3g} on held-out prompts"
    return fact(run, f"part:{name}" if run.parts() else "score", text, 1)


def find_gold_mismatch(run: LoggedRun) -> Evidence | None:
    """Gold stands unpaid where the reward looks; or it is that of another row; or held-out pays and training not."""
    if run.trials.get("alone"):
        return Evidence(CERTAIN + 0.09, [Fact(run.trials["alone"], "rescore")])
    shift, other = shifted_gold(run), OTHER_ROW.search(run.reward_source)
    train = [t for t in run.texts if t.kind == "train"]
    golds, prompts = {t.gold for t in train if t.gold}, {t.prompt for t in train if t.gold}
    if shift:
        return Evidence(CERTAIN + 0.08, [shift])
    if other:
        text = f"the reward compares with {other[0]}, which is not the completion's row"
        return Evidence(CERTAIN + 0.08, [Fact(text, "reward")])
    if len(prompts) >= 8 and len(golds) == 1:
        return Evidence(CERTAIN, [shown(train, f"{len(prompts)} prompts have the same gold answer, {min(golds)!r}")])
    unpaid, unlike = unpaid_with_gold(run.texts), unlike_held_out(run)
    if unpaid:
        reads, used = source_marks(run.reward_source), marks_with_gold(unpaid)
        text = (
            f"{len(unpaid)} unpaid completions hold the gold answer{' where the reward looks' if used & reads else ''}"
        )
        sure = CERTAIN + 0.05 if used & reads else LIKELY
        return Evidence(sure, [shown(unpaid, text)]) if used & reads or not reads else None
    return Evidence(LIKELY + 0.2, [unlike]) if unlike else None


GOLD_MISMATCH = Cause(
    "gold_mismatch",
    "answers are compared with what is not their gold: a number with a text, another row's gold, a wrong column",
    find_gold_mismatch,
    f"{STILL} {LOST} constant_reward too_hard too_sparse nothing_moves no_group_variance critic_useless noisy_reward "
    "reward_ignores_answer part_bought other_eval_task inverted_reward memorised_prompts updates_too_large answer_form",
    "compare texts with texts (str() on both sides) and print prompt, gold and extracted answer of ten rows",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "counting; held-out and training rewards are one function, so their pay at the start agrees",
)


# ------------------------------------------------------- constant reward (src/parts/reading/causes/constant_reward.py)


def placeholder(source: str) -> str:
    """Why a reward's source may pay always the same: it never reads completions, or an exception becomes a score."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return ""
    for function in [node for node in nodes if isinstance(node, ast.FunctionDef)]:
        given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} & COMPLETIONS
        inside = list(ast.walk(function))
        # len(completions), and `for _ in completions`, do not look at any
        unread = [
            node.args[0]
            for node in inside
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and node.args
        ]
        unread += [
            node.iter for node in inside if isinstance(node, ast.comprehension) and ast.unparse(node.target) == "_"
        ]
        reads = [node for node in inside if isinstance(node, ast.Name) and node.id in given and node not in unread]
        if given and not reads:
            return f"{function.name} never reads its {min(given)}"
    caught = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    if any(not isinstance(inner, ast.Raise) for node in caught for inner in node.body[-1:]):
        return "the reward turns an exception into a score"
    return ""


def find_constant_reward(run: LoggedRun) -> Evidence | None:
    """No spread of scores, or of the part for correctness, at any step, for right and wrong completions alike."""
    if run.trials.get("constant"):
        return Evidence(CERTAIN + 0.08, [Fact(run.trials["constant"], "rescore")])
    name, means = first_part(run)
    part = len(run.parts()) > 1 and len(means) >= 3 and max(means) - min(means) < 1e-9
    few = 0 < len(run.values("score")) < 3 and run.series.get("score_std") and max(run.values("score_std")) <= 1e-6
    few = few and (run.last("score") or placeholder(run.reward_source))  # a few zeros may be wrong answers
    solved = is_solved(run) and not (is_constant(run) and max(run.early("score_std", 3), default=1) <= 1e-6)
    if not (is_constant(run) or few or part) or solved:
        return None
    why, level = placeholder(run.reward_source), means[-1] if part else run.last("score")
    right, wrong = scores_by_answer(early_texts(run.texts))
    series = f"part:{name}" if part else "score_std" if run.series.get("score_std") else "score"
    facts = [fact(run, series, f"{name if part else 'every completion'} scored {level:.4g} at every step")]
    if why:
        return Evidence(CERTAIN + 0.07 if right or "exception" not in why else CERTAIN, [*facts, Fact(why, "reward")])
    if right and wrong and not part:
        examples = [t for t in run.texts if t.right][:1] + [t for t in run.texts if t.right is False][:2]
        facts.append(shown(examples, f"{len(right)} right and {len(wrong)} wrong completions are paid alike"))
    # neither "always wrong" nor, where wrong ones are among them, "always right"
    sure = abs(level) > 1e-9 and (abs(level - 1) > 1e-9 or (wrong and not part))
    always_wrong = abs(level) <= 1e-9 and not right and wrong
    return Evidence(CERTAIN + 0.05 if sure else LIKELY - 0.15 if always_wrong else LIKELY + 0.02, facts)


CONSTANT_REWARD = Cause(
    "constant_reward",
    "the reward pays every completion the same: a placeholder, or an exception turned into a score",
    find_constant_reward,
    f"{STILL} {LOST} nothing_moves too_hard too_easy too_sparse no_group_variance critic_useless reward_ignores_answer "
    "part_dies updates_too_large part_bought answer_form gold_mismatch kl_holds_policy",
    "have {reward} read the completion, and let an exception end the run; score gold answers before training: "
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "definition: equal scores give advantage 0; verl#3024",
)


# ------------------------------------------------------- inverted reward (src/parts/reading/causes/inverted_reward.py)


def separation(right: list[float], wrong: list[float]) -> tuple[float, float, str]:
    """Difference of the mean scores of right and wrong completions, its standard error, and both in words."""
    means = statistics.fmean(right), statistics.fmean(wrong)
    least = max(statistics.pvariance([*right, *wrong]) * 0.25, 1e-18)  # no class is taken for free of scatter
    errors = [max(statistics.variance(x) if len(x) > 1 else 0.0, least) / len(x) for x in (right, wrong)]
    text = f"{len(right)} right completions score {means[0]:.3g}, {len(wrong)} wrong ones {means[1]:.3g}"
    return means[0] - means[1], math.sqrt(sum(errors)), text


def find_inverted_reward(run: LoggedRun) -> Evidence | None:
    """Right completions score less than wrong ones, beyond chance."""
    if run.trials.get("inverted"):
        return Evidence(CERTAIN + 0.09, [Fact(run.trials["inverted"], "rescore")])
    right, wrong = scores_by_answer(early_texts(run.texts))
    gain = held_out_gain(run)
    if len(right) >= 3 and len(wrong) >= 3:
        difference, error, text = separation(right, wrong)
        best_paid = sorted((t for t in run.texts if t.right is False and t.score is not None), key=lambda t: -t.score)
        examples = best_paid[:2] + [t for t in run.texts if t.right][:1]
        return Evidence(CERTAIN + 0.06, [shown(examples, text)], since=1) if difference < -4 * error else None
    if not right and gain and gain[2] < 0 and run.trend("score") > 0:
        text = f"the score rose and the held-out figure fell by {-gain[0]:.3g}"
        return Evidence(LIKELY, [fact(run, "held_out", text)], since=1)
    return None


INVERTED_REWARD = Cause(
    "inverted_reward",
    "the reward is inverted: it pays wrong answers more than right ones",
    find_inverted_reward,
    f"{STILL} {LOST} updates_too_large part_bought part_dies reward_ignores_answer critic_useless limit_too_short "
    "too_easy memorised_prompts gold_mismatch answer_form too_hard no_group_variance near_greedy too_sparse",
    "turn the sign of {reward}, then begin anew from the first model",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "scores of right and wrong completions, Welch's t",
    breaks=True,
)


# ------------------------------------------- reward ignores answer (src/parts/reading/causes/reward_ignores_answer.py)


def find_reward_ignores_answer(run: LoggedRun) -> Evidence | None:
    """Scores differ, and the difference between right and wrong completions is none; or all parts judge the form."""
    if run.trials.get("indifferent"):
        return Evidence(CERTAIN + 0.06, [Fact(run.trials["indifferent"], "rescore")], since=1)
    parts = run.parts()
    if parts and all(map(is_format, parts)):
        text = f"no part of the reward judges the answer: {', '.join(parts)}"
        return Evidence(LIKELY + 0.25, [fact(run, f"part:{next(iter(parts))}", text)], since=1)
    right, wrong = scores_by_answer(early_texts(run.texts))
    reach = max([*right, *wrong], default=0.0) - min([*right, *wrong], default=0.0)
    if len(right) < 6 or len(wrong) < 6 or is_constant(run) or reach <= 1e-9:
        return None
    difference, error, text = separation(right, wrong)
    only_right = difference > 4 * error and max(wrong) - min([*right, *wrong]) <= 1e-9
    if only_right or difference + 2 * error > 0.5 * reach or difference < -4 * error:
        return None
    paid = payment_by_feature(run.texts)
    name = max(paid, key=lambda key: abs(paid[key]))
    text += f"; the score goes with {name} (r = {paid[name]:.2f})" if abs(paid[name]) > 0.5 else ""
    examples = sorted((t for t in run.texts if t.right is False and t.score is not None), key=lambda t: -t.score)
    return Evidence(CERTAIN + 0.03, [shown(examples, text)], since=1)


REWARD_IGNORES_ANSWER = Cause(
    "reward_ignores_answer",
    "the reward does not look at the answer: right and wrong completions are paid alike",
    find_reward_ignores_answer,
    f"{STILL} {LOST} limit_too_short critic_useless too_easy memorised_prompts updates_too_large",
    "pay for the right answer; form, length or style at most beside a right one",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "difference of mean scores with its interval, below half of what scores span",
    breaks=True,
)


# ------------------------------------------------------------- noisy reward (src/parts/reading/causes/noisy_reward.py)


def find_noisy_reward(run: LoggedRun) -> Evidence | None:
    """Pairs of one text, one prompt and one step whose scores differ."""
    if run.trials.get("twice"):
        return Evidence(CERTAIN + 0.08, [Fact(run.trials["twice"], "rescore")])
    scored = [t for t in run.texts if t.score is not None]
    for key in (
        lambda t: (t.step, t.kind, t.prompt, t.completion, t.gold or ""),
        lambda t: (0, t.kind, t.prompt, t.completion, t.gold or ""),
    ):
        ordered = sorted(scored, key=key)
        groups = [list(group) for _, group in itertools.groupby(ordered, key=key)]
        groups = [group for group in groups if len(group) > 1]
        differing = [group for group in groups if max(t.score for t in group) - min(t.score for t in group) > 1e-6]
        if sum(map(len, groups)) >= 6:
            break
    if len(differing) < 2 or len(differing) < 0.1 * len(groups):
        return None
    widest = max(differing, key=lambda group: max(t.score for t in group) - min(t.score for t in group))
    ends = [min(widest, key=lambda t: t.score), max(widest, key=lambda t: t.score)]
    text = f"{len(differing)} of {len(groups)} repeated completions scored differently"
    text += f", one {ends[0].score:.3g} and {ends[1].score:.3g}"
    return Evidence(CERTAIN + 0.07, [shown(ends, text)])


NOISY_REWARD = Cause(
    "noisy_reward",
    "the reward is noise: the same completion of the same prompt gets other scores",
    find_noisy_reward,
    f"{LOST} flat_score held_out_flat critic_explains_little reward_ignores_answer nothing_moves kl_holds_policy "
    "critic_useless inverted_reward too_sparse updates_too_large part_bought too_hard constant_reward "
    "answer_form gold_mismatch limit_too_short memorised_prompts no_group_variance",
    "make {reward} deterministic: no random draw, a judge at temperature 0, no state kept between calls",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "definition: a reward is a function of prompt and completion",
)


# ------------------------------------------------------- limit too short (src/parts/reading/causes/limit_too_short.py)


def find_limit_too_short(run: LoggedRun) -> Evidence | None:
    """A fifth and more of the completions are cut from the first steps on, and those that are cut are hardly paid."""
    cut, name = run.early("truncated", 3), "truncated"
    if not cut:
        cut, name = run.early("limit", 3), "limit"
    if not cut or min(cut[0], sum(cut) / len(cut)) < 0.2 or min(run.series[name]) > 10 or run.last(name) < 0.1:
        return None
    if name == "limit" and is_solved(run):
        return None
    ended = [t for t in run.texts if t.finished is False and t.score is not None]
    whole = [t for t in run.texts if t.finished is True and t.score is not None]
    facts = [
        fact(run, name, f"{sum(cut) / len(cut):.0%} are cut by the limit in the first steps", min(run.series[name]))
    ]
    limit = run.number("max_length")
    if limit:
        facts.append(Fact(f"the limit is {limit:g} tokens", "max_length"))
    scores = run.values("score")
    if (
        ended
        and whole
        and sum(t.score for t in ended) / len(ended) >= 0.7 * sum(t.score for t in whole) / len(whole) > 0
    ):
        return None  # being cut costs nothing: the limit is not what holds the score
    if not ended and scores and scores[0] + cut[0] - 1 > 0.5 * min(scores[0], cut[0]):
        return None  # some are cut and paid
    if ended:
        without = [t for t in ended if not t.gold or not holds(t.completion, t.gold)]
        text = f"{len(ended)} logged completions stop at the limit, {len(without)} without their answer"
        facts.append(shown(without or ended, text))
    return Evidence(CERTAIN if sum(cut) / len(cut) >= 0.5 or ended else LIKELY + 0.15, facts)


LIMIT_TOO_SHORT = Cause(
    "limit_too_short",
    "the length limit is below what an answer needs: completions are cut from the first step on",
    find_limit_too_short,
    f"{STILL} truncated length_fell answer_form gold_mismatch too_hard too_sparse constant_reward nothing_moves "
    "no_group_variance part_bought critic_useless",
    "raise {length} to what whole answers need, or ask for shorter ones",
    "",
    "TRL completions/clipped_ratio; trl#5697; limit of a fifth: our heuristic",
)


# --------------------------------------------------------------------- too easy (src/parts/reading/causes/too_easy.py)


def find_too_easy(run: LoggedRun) -> Evidence | None:
    """Held out 95 % and sampled 80 % are right at the start, or sampled 95 % without a held-out figure."""
    rate, held_out = pass_rate(run, steps=3), run.early("held_out", 1)
    least = 0.8 if held_out and SOLVED <= held_out[0] <= 1 else SOLVED
    if not rate or rate[1] < least or (held_out and held_out[0] < 0.9):
        return None
    right, wrong = scores_by_answer(run.texts)
    if len(wrong) > 0.4 * len([*right, *wrong]):
        return None  # paid though wrong: the reward is at fault
    text = f"{rate[0]} is {rate[1]:.3g} in the first steps"
    facts = [fact(run, f"part:{rate[0]}" if run.parts() else "score", text, min(run.steps()))]
    if held_out:
        facts.append(
            fact(run, "held_out", f"held out it is {held_out[0]:.3g} at the start", min(run.series["held_out"]))
        )
    return Evidence(CERTAIN + 0.02 if len(right) >= 4 else LIKELY + 0.1, facts)


TOO_EASY = Cause(
    "too_easy",
    "the prompts are too easy: nearly every completion is right from the start, so groups score alike",
    find_too_easy,
    f"{STILL} entropy_fell kl_high no_group_variance nothing_moves critic_useless constant_reward memorised_prompts",
    "harder prompts; or stop here, as there is nothing left to learn from these",
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL",
    "Wilson's interval of the pass rate",
)


# ----------------------------------------------------------------- too sparse (src/parts/reading/causes/too_sparse.py)


def find_too_sparse(run: LoggedRun) -> Evidence | None:
    """A pass rate between 0 and 12 %, most groups without a right answer, as its forecast says, and no gain."""
    rate, group = pass_rate(run, steps=20), int(run.number("group_size") or 8)
    alike = run.early("zero_std", 20)
    if (
        not rate
        or not (alike or run.number("group_size"))
        or not 0.002 < rate[1] < 0.12
        or group == 1
        or (gained(run) and run.trend("score") > 0)
    ):
        return None
    expected = forecast(rate[1], group)
    share = sum(alike) / len(alike) if alike else expected
    if share < 0.6 or share < expected - 0.15:
        return None
    enough = next((2**i for i in range(1, 10) if forecast(rate[1], 2**i) < 0.5), 512)
    text = f"pass rate {rate[1]:.2%}: {expected:.0%} of groups of {group} are all alike by forecast"
    text += f", {share:.0%} were; groups of {enough} would bring it to {forecast(rate[1], enough):.0%}"
    sure = CERTAIN if alike and run.number("group_size") else LIKELY + 0.1
    return Evidence(sure, [fact(run, "zero_std" if alike else "score", text, min(run.steps()))])


TOO_SPARSE = Cause(
    "too_sparse",
    "right answers are too rare for the group: most groups have none, so most of a batch teaches nothing",
    find_too_sparse,
    f"{STILL} no_group_variance nothing_moves too_hard critic_useless kl_holds_policy",
    "raise {group}; {filter}; prompts that the model solves now and then, or partial credit",
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL",
    "p^G + (1 - p)^G; DAPO (Yu 2025), section 3.2",
)


# --------------------------------------------------- no group variance (src/parts/reading/causes/no_group_variance.py)


def find_no_group_variance(run: LoggedRun) -> Evidence | None:
    """Groups score alike from the start, far more often than the pass rate forecasts, while prompts differ."""
    alike, rate, group = run.early("zero_std"), pass_rate(run), run.number("group_size")
    if group == 1 and run.settings.get("grouped"):
        return Evidence(CERTAIN, [fact(run, "score", "the group has 1 completion: nothing to compare it with", 1)])
    groups = {}
    for t in run.texts:
        if t.kind == "train" and t.score is not None:
            groups.setdefault((t.step, t.prompt), []).append(t)
    several = [group for group in groups.values() if len({t.completion for t in group}) > 2]
    spreads = [max(t.score for t in group) - min(t.score for t in group) for group in several]
    means = {round(group[0].score, 6) for group in several}
    if len(several) >= 5 and max(spreads) <= 1e-6 and len(means) > 2:
        text = f"different completions of one prompt score alike, in all {len(several)} logged groups"
        return Evidence(CERTAIN + 0.06, [shown(several[0], text)])
    equal = list(zip(run.early("advantage_max"), run.early("advantage_min"), strict=False))
    share = sum(alike) / len(alike) if alike else sum(a == b for a, b in equal) / len(equal) if equal else 0.0
    if is_constant(run) or is_solved(run) or share < 0.8 or len(alike or equal) < 3:
        return None
    if rate and 0.1 < rate[1] < 0.9:
        expected = forecast(rate[1], int(group or 8))
        if share < expected + 0.25:
            return None
        text = f"at a pass rate of {rate[1]:.2g}, where chance gives {expected:.0%}"
    elif rate or not run.series.get("score_std") or min(run.early("score_std")) <= 1e-6:
        return None
    else:
        text = f"while scores differ by {run.first('score_std'):.3g} between prompts"
    text = f"{share:.0%} of the groups score all alike {text}"
    return Evidence(CERTAIN + 0.02, [fact(run, "zero_std" if alike else "advantage_max", text, min(run.steps()))])


NO_GROUP_VARIANCE = Cause(
    "no_group_variance",
    "groups have no variance: prompts are always or never solved, or scored by what their completions share",
    find_no_group_variance,
    f"{STILL} nothing_moves critic_useless reward_ignores_answer part_bought kl_holds_policy",
    "score what differs between completions of one prompt; {filter}; {group} 8 or more",
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL",
    "definition of a group's advantage; p^G + (1 - p)^G",
)


# ----------------------------------------------------- sampler mismatch (src/parts/reading/causes/sampler_mismatch.py)

MISMATCH = (  # series, lowest and highest value that is fine, words
    ("gap_mean", -math.inf, math.log(1.05), "mean difference of log-probs {:.3g} nats; above log 1.05 = 0.049"),
    ("mismatch_kl", -math.inf, 0.01, "KL of sampler and trainer {:.3g} nats a token; above 0.01"),
    ("weight_mean", 0.5, 2, "mean importance weight {:.3g}; outside 0.5 to 2"),
    ("weight_ess", 0.3, math.inf, "effective sample size {:.3g} of the batch; below 0.3"),
    ("weight_std", -math.inf, 1, "standard deviation of the importance weights {:.3g}; above 1"),
    ("probs_correlation", 0.9, math.inf, "correlation of the two probabilities {:.3g}; below 0.9 (our heuristic)"),
)


def find_sampler_mismatch(run: LoggedRun) -> Evidence | None:
    """A distance beyond its limit in most steps, or a ratio other than 1 in a rollout's only update."""
    penalty = run.number("repetition_penalty")
    if penalty is not None and penalty != 1:
        text = f"the sampler has a repetition penalty of {penalty:g}, the trainer has none"
        return Evidence(CERTAIN + 0.04, [Fact(text, "repetition_penalty")], since=1)
    gap = 0.01 if run.settings.get("exact") else 2.0  # fp32 with one sampler: rounding; else tokens may differ much
    largest = ("gap_max", -math.inf, gap, f"largest difference of a token {{:.3g}} nats; above {gap} (our heuristic)")
    for name, low, high, text in (*MISMATCH, largest):
        values = run.values(name)
        begun = not values or not low <= statistics.median(values[:2]) <= high  # else weights that go stale
        if values and begun and not low <= statistics.median(values) <= high:
            first = next(step for step, value in sorted(run.series[name].items()) if not low <= value <= high)
            text = f"{text.format(statistics.median(values))}; median of all steps"
            return Evidence(CERTAIN + 0.03, [fact(run, name, text, first)], since=first)
    updates, constant = run.series.get("updates", {}), run.settings.get("updates")
    for name, limit in (("ratio_max", 1 + 1e-3), ("clip_frac", 1e-3)):
        for step, value in sorted(run.series.get(name, {}).items()):
            if updates.get(step, constant) == 1 and value > limit:
                text = f"{run.name(name)} is {value:.4g} at step {step}, which has one update per rollout"
                return Evidence(CERTAIN + 0.03, [fact(run, name, text, step)], since=step)
    return None


SAMPLER_MISMATCH = Cause(
    "sampler_mismatch",
    "sampler and trainer give the same tokens different probabilities",
    find_sampler_mismatch,
    f"{LOST} sampler_gap flat_score held_out_flat critic_explains_little updates_too_large critic_useless "
    "stale_weights part_dies nothing_moves",
    "the same {temperature}, top-p 1 and top-k off on both sides, old log-probs by the trainer's own forward pass "
    "(dropout off), weights copied after every step; {mismatch} corrects what is left",
    "python scripts/selfcheck.py scripts/ppo_train.py",
    "NeMo-RL docs/guides/grpo.md (1.05, 0.01); verl docs/algo/rollout_corr.md; verl#2996, verl#6280",
    breaks=True,
)


# ----------------------------------------------------------- stale weights (src/parts/reading/causes/stale_weights.py)

LEAST_GROWTH = {"mismatch_kl": 1e-3, "gap_mean": 1e-3, "gap_max": 0.05}  # least distance, in nats, that counts


def find_stale_weights(run: LoggedRun) -> Evidence | None:
    """Sampler and trainer agree at the first step, and their distance grows to five times that and more."""
    for name, least in LEAST_GROWTH.items():
        values = [abs(value) for value in run.values(name)]
        if len(values) < 4:
            continue
        middle, first = statistics.median(values[2:]), values[0]
        synced = 0 < first < 0.01 * least and middle > least  # one engine: they agree to rounding at the first step
        drifts = trend(values) > 0 and ends(values)[1] > max(least, 5 * ends(values)[0]) and run.trend("score") <= 0
        if synced or drifts:
            step = next(step for step, value in sorted(run.series[name].items()) if abs(value) > least)
            text = f"{run.name(name)} grew from {first:.2g} to {max(middle, ends(values)[1]):.2g} nats a token"
            return Evidence(CERTAIN + 0.05, [fact(run, name, text, step)], since=step)
    return None


STALE_WEIGHTS = Cause(
    "stale_weights",
    "the sampler keeps old weights, wholly or in part, while the trainer moves away from them",
    find_stale_weights,
    f"{STILL} {LOST} sampler_gap sampler_mismatch updates_too_large critic_useless part_bought kl_holds_policy",
    "copy all weights to the sampler after every step; --check_sync of our trainers names the tensors that differ",
    "--check_sync 1 for ten steps",
    "allenai/open-instruct#1473; five times the start: our heuristic, kernels differ less",
    breaks=True,
)


# --------------------------------------------------- updates too large (src/parts/reading/causes/updates_too_large.py)

LARGE = (  # series of one step's update, value that is too much, words
    ("kl_step", 0.1, "KL of one step's update"),
    ("clip_frac", 0.3, "clipped share of tokens"),
)


def large_steps(run: LoggedRun) -> list[Fact]:
    """Figures of an update that are too large in three steps and a tenth of the run, or in most of its first steps."""
    facts = []
    for name, limit, words in LARGE:
        points = sorted(run.series.get(name, {}).items())
        high = [step for step, value in points if abs(value) > limit]
        most = max(points, key=lambda point: abs(point[1]), default=(0, 0.0))
        if (len(high) >= 3 and len(high) >= 0.1 * len(points)) or (high and abs(most[1]) > 10 * limit):
            text = f"{words} above {limit} in {len(high)} of {len(points)} steps, up to {most[1]:.3g}"
            facts.append(fact(run, name, text, high[0]))
    kl = sorted(run.series.get("kl", {}).items())
    for i, ((_, before), (step, after)) in enumerate(itertools.pairwise(kl if kl and abs(kl[0][1]) < 0.05 else [])):
        stays = min(value for _, value in kl[i + 1 : i + 5]) > 0.5  # else the figure only scatters
        if stays and after - before > 0.5 and after > 2 * max(value for _, value in kl[: i + 1]):
            text = f"KL to the reference went from {before:.3g} to {after:.3g} nats a token in one step"
            return [*facts, fact(run, "kl", text, step)]
    return facts


def find_updates_too_large(run: LoggedRun) -> Evidence | None:
    """The update's own figures moved first, or the score was lost within the first steps."""
    facts, lost = large_steps(run), collapse(run)
    scores = run.values("score")
    # the first updates took all: what so many completions would not score by chance
    rest = scores[1:]
    count = (run.number("batch") or 32) * len(rest)
    held_out, gain = run.values("held_out"), held_out_gain(run)
    many = len(rest) > 1 and scores[0] * count > 20
    many = many or (gain is not None and gain[2] < 0 and held_out[-1] <= 0.02 * held_out[0])
    at_once = many and rest != [] and max(rest) <= 0.02 * scores[0] and min(scores) >= 0
    ruined = bool(lost) or at_once
    if gained(run) and not ruined and run.trend("score") > 0:
        return None  # large, and it learns
    rate, passes = run.values("lr"), (run.number("epochs") or 1) * (run.number("minibatches") or 1)
    if passes >= 16:
        facts.append(Fact(f"a rollout is used for {passes:g} updates", "updates"))
    if ruined:
        step = lost[2] if lost else sorted(run.series["score"])[1]
        begin, end = (lost[0], lost[1]) if lost else (scores[0], scores[-1])
        said = fact(
            run, "score", f"the score fell from {begin:.3g} to {end:.3g}; half of it was lost by step {step}", step
        )
    if facts:
        if rate:
            facts.append(fact(run, "lr", f"the learning rate is {max(rate):.3g}"))
        strength = CERTAIN + 0.04 if ruined or len(facts) > 2 else LIKELY + 0.2
        moved = min(f.step for f in [*facts, said] if f.step is not None) if ruined else None
        return Evidence(strength, facts, since=moved)
    if ruined:
        return Evidence(CERTAIN + 0.01 if at_once else LIKELY + 0.1, [said], since=step)
    return None


UPDATES_TOO_LARGE = Cause(
    "updates_too_large",
    "updates are too large: the policy is pushed to where its samples do not reach",
    find_updates_too_large,
    f"{STILL} {LOST} sampler_gap part_dies part_bought critic_useless no_group_variance constant_reward "
    "nothing_moves limit_too_short too_hard sampler_mismatch stale_weights too_sparse",
    "lower {lr} by 3 to 10 times, or fewer updates a rollout ({reuse}); go on from a checkpoint before",
    "",
    "Spinning Up's PPO ends an update at KL 0.015; limits 0.1 nats, 0.3 of tokens, 0.5 nats in a step: our heuristic",
    breaks=True,
)


# ----------------------------------------------------------- nothing moves (src/parts/reading/causes/nothing_moves.py)

SLOW = 20  # steps after which a usual rate has moved the policy by more than 1e-4 nats a token


def held_still(run: LoggedRun) -> int:
    """Steps at the start in which the policy is not meant to move: the critic's warm-up, then the rate's."""
    return int((run.number("critic_warmup") or 0) + max(run.number("warmup") or 0, 0))


def unchanged_texts(run: LoggedRun) -> Fact | None:
    """Held-out completions of the first and the last evaluation that are the same, all of them."""
    held_out = [t for t in run.texts if t.kind == "eval"]
    steps = sorted({t.step for t in held_out})
    if len(steps) < 2 or steps[-1] - steps[0] < 3 or steps[-1] < held_still(run) + 3:
        return None
    first, last = ({t.prompt: t for t in held_out if t.step == step} for step in (steps[0], steps[-1]))
    both = [prompt for prompt in first if prompt in last]
    same = [prompt for prompt in both if first[prompt].completion == last[prompt].completion]
    if len(both) < 4 or len(same) < len(both):
        return None
    text = f"all {len(same)} held-out completions of step {steps[-1]} are those of step {steps[0]}"
    return shown([last[prompt] for prompt in same], text)


def rate_facts(run: LoggedRun) -> list[Fact]:
    """A learning rate of 0, a warm-up as long as the run, a rate far below any in use."""
    rates, facts = run.values("lr"), []
    if len(rates) >= 2 and max(rates[: len(rates) // 2 + 2]) == 0:
        facts.append(fact(run, "lr", "the learning rate is 0 in the first half of the run", min(run.series["lr"])))
    warmup, steps = run.number("warmup"), max(run.steps(), default=0)
    if warmup and warmup > 1 and warmup >= max(steps, run.number("steps") or 0):
        facts.append(Fact(f"the warm-up takes {warmup:g} steps, the run {steps}", "warmup"))
    if not facts and len(rates) >= 10 and max(rates) < 1e-6 and all(b > a for a, b in itertools.pairwise(rates)):
        facts.append(fact(run, "lr", f"the learning rate still rises at the last step and is {rates[-1]:.3g} there"))
    clip = run.number("grad_clip")
    if clip is not None and 0 < clip < 1e-6:
        facts.append(Fact(f"gradients are clipped to {clip:g}", "max_grad_norm"))
    highest = max([*rates, *([run.number("lr")] if run.number("lr") is not None and not rates else [])], default=None)
    if not facts and highest is not None and highest < 2e-8:
        facts.append(fact(run, "lr", f"the highest learning rate is {highest:.3g}"))
    rounded = "bf" in str(run.settings.get("precision", "")) and run.trainer != "ppo_train"
    if not facts and rounded and highest is not None and highest <= 5e-6 and not run.config.get("bf16"):
        facts.append(Fact(f"weights are kept in bfloat16 and the learning rate is {highest:.3g}", "dtype"))
    return facts


def still_figures(run: LoggedRun) -> list[Fact]:
    """Figures that show that the policy is where it began, though scores differ."""
    facts, start = [], held_still(run)
    steps = len([step for step in run.steps() if step > start])
    kl, norms, moved, entropy = (
        [value for step, value in sorted(run.series.get(name, {}).items()) if step > start]
        for name in ("kl", "grad_norm", "kl_step", "entropy")
    )
    if len(kl) >= 3 and max(map(abs, kl[1:])) < (1e-4 if len(kl) >= SLOW else 1e-7):
        facts.append(fact(run, "kl", f"{run.name('kl')} stays below {max(map(abs, kl[1:])):.2g} nats a token"))
    if len(norms) >= 2 and max(norms) < 1e-9:
        facts.append(fact(run, "grad_norm", f"{run.name('grad_norm')} is {max(norms):.2g} although scores differ", 1))
    if not kl and moved and (run.settings.get("updates") or 1) > 1 and max(map(abs, moved)) < 1e-7:
        facts.append(fact(run, "kl_step", f"{run.name('kl_step')} stays below {max(map(abs, moved)):.2g}"))
    if not kl and steps >= 20 and entropy and abs(ends(entropy)[1] - ends(entropy)[0]) < 0.01 * abs(ends(entropy)[0]):
        facts.append(fact(run, "entropy", f"{run.name('entropy')} stays at {ends(entropy)[1]:.3g}"))
    return facts


def find_nothing_moves(run: LoggedRun) -> Evidence | None:
    """The rate cannot move anything, or scores differ and KL, gradient or held-out texts stand still."""
    if max(run.steps(), default=0) <= (run.number("critic_warmup") or 0):
        return None  # only the critic has been trained so far
    if is_constant(run) or (gained(run) and run.trend("score") > 0):
        return None
    rates, still, texts = rate_facts(run), still_figures(run), unchanged_texts(run)
    held_out = run.values("held_out")
    if len(held_out) >= 2 and max(held_out) - min(held_out) > 0.02:
        texts = None
    elif len(held_out) >= 3 and max(held_out) == min(held_out) and not texts and 0.02 < held_out[0] < 0.98:
        texts = fact(run, "held_out", f"the held-out figure is {held_out[0]:.4g} at all {len(held_out)} evaluations")
    facts = rates + still + ([texts] if texts else [])
    if not facts:
        return None
    decisive = any(f.figure == run.name("grad_norm") and "although" in f.text for f in still)
    rounded = rates and all(f.figure == "dtype" for f in rates)
    if (rates and not rounded) or decisive or (texts and (still or rounded)) or len(still) > 1:
        return Evidence(CERTAIN + 0.03, facts)
    return Evidence(LIKELY + (0.25 if texts or run.series.get("kl") else 0.0), facts)


NOTHING_MOVES = Cause(
    "nothing_moves",
    "nothing moves: scores differ, and the policy stays where it began",
    find_nothing_moves,
    f"{STILL} critic_useless kl_holds_policy too_sparse part_bought",
    "raise {lr} (LoRA: about ten times that of full training), a warm-up far shorter than the run, trained weights in "
    "float32, and something left to train: not all frozen, masked or filtered",
    "",
    "definition; TRL lora_without_regret.md; a bf16 weight swallows updates below 1/256 of it",
)


# ------------------------------------------------------- kl holds policy (src/parts/reading/causes/kl_holds_policy.py)

HEAVY = 0.3  # weight of the KL beside scores of about 1; 0 to 0.1 is in use


def find_kl_holds_policy(run: LoggedRun) -> Evidence | None:
    """A heavy weight, a KL that stays small, and no gain although the rate is not small."""
    if run.config.get("teacher"):
        return None  # distillation: the KL is the goal
    weight = run.number("kl")
    if weight is None and run.series.get("kl_weight"):
        weight = max(run.values("kl_weight"))
    scale = max([abs(run.first("score_std")) if run.series.get("score_std") else 1.0, 0.05])
    if weight is None or weight < HEAVY * min(1.0, 2 * scale) or is_constant(run):
        return None
    if gained(run) and run.trend("score") > 0:
        return None
    kl = run.last("kl")
    if run.series.get("kl") and kl > 0.3:
        return None
    facts = [Fact(f"the KL's weight is {weight:g}, scores differ by {scale:.2g}", run.name("kl_weight"))]
    if run.series.get("kl"):
        facts.append(fact(run, "kl", f"{run.name('kl')} stays at {kl:.3g} nats a token"))
    return Evidence(CERTAIN + 0.02 if weight >= 1 else LIKELY + 0.2, facts)


KL_HOLDS_POLICY = Cause(
    "kl_holds_policy",
    "the KL term holds the policy where it began: moving costs more than the reward pays",
    find_kl_holds_policy,
    "flat_score held_out_flat critic_explains_little entropy_rose gradient_spike score_fell clipped "
    "nothing_moves critic_useless updates_too_large too_sparse",
    "lower {kl} to 0.01 or 0",
    "",
    "the optimum under a KL of weight b is the start's policy times exp(reward / b); limit 0.3: our heuristic",
)


# --------------------------------------------------------------- part bought (src/parts/reading/causes/part_bought.py)

LESS = {"length": "brevity", "answers tried": "fewer answers"}  # what it is called where less of a feature pays


def rising_parts(run: LoggedRun) -> list[str]:
    """Parts that rise, or are full by their form, while the one for correctness falls or stands."""
    name, part = first_part(run)
    constant = bool(part) and max(part) - min(part) < 1e-9  # nothing was bought at its cost
    if not part or constant or ends(part)[0] >= SOLVED or len(run.parts()) < 2:
        return []
    others = {other: values for other, values in run.parts().items() if other != name and values}
    rising = [other for other, values in others.items() if trend(values) > 0]
    full = [
        other for other, values in others.items() if is_format(other) and ends(values)[1] >= 0.9 * max(1.0, *values)
    ]
    if trend(part) < 0 or trend(part[len(part) // 2 :]) < 0:  # it may have risen first
        return rising or full
    return (rising or full) if is_flat(part) else []


def paid_feature(run: LoggedRun) -> tuple[str, list[Text]] | None:
    """(what was seen, best paid completions) of a feature that the score goes with and that moved to where it pays."""
    scored, train = [t for t in run.texts if t.score is not None], [t for t in run.texts if t.kind == "train"]
    steps = sorted({t.step for t in train})
    if len(scored) < 16 or len(steps) < 2:
        return None
    paid, third = payment_by_feature(scored), max(1, len(steps) // 3)
    for name in sorted(paid, key=lambda key: -abs(paid[key])):
        parts = ([t for t in train if t.step in part] for part in (steps[:third], steps[-third:]))
        first, last = (statistics.fmean(FEATURES[name](t.completion) for t in part) for part in parts)
        moved = (last - first) * (1 if paid[name] > 0 else -1)
        if abs(paid[name]) >= 0.5 and moved > 0.1 * max(abs(first), abs(last), 0.1):
            words = name if paid[name] > 0 else LESS.get(name, f"less {name}")
            text = f"among equally right completions the score goes with {words} (r = {paid[name]:.2f})"
            return f"{text}: {name} is {first:.3g}, then {last:.3g}", sorted(scored, key=lambda t: -t.score)
    return None


def paid_unfinished(run: LoggedRun) -> Fact | None:
    """Completions that are cut and paid all the same: by counting, at least mean + share cut - 1."""
    cut, (name, means) = run.values("truncated"), first_part(run)
    highest = [t.score or 0.0 for t in run.texts] + run.values("score_max") + means
    if len(cut) < 3 or not means or max(highest) > 1:
        return None
    last, mean = ends(cut)[1], ends(means)[1]
    if last < 0.2 or mean + last - 1 <= 0.5 * min(mean, last):
        return None
    text = f"{last:.0%} are cut at the end and {name} is {mean:.3g}"
    return fact(run, "truncated", f"{text}, so at least {mean + last - 1:.0%} are cut and paid")


def find_part_bought(run: LoggedRun) -> Evidence | None:
    """Something else rises or pays, and correctness, by gold answers or held out, does not rise."""
    (name, part), held_out = first_part(run), held_out_gain(run)
    truth = right_gain(run.texts) or held_out
    better = truth is not None and truth[0] > GAIN and truth[1] > -GAIN
    lost = trend(part) < 0 or trend(part[len(part) // 2 :]) < 0
    worse = (truth is not None and truth[2] < 0) or (len(run.parts()) > 1 and lost)
    rising, feature, unfinished = rising_parts(run), paid_feature(run), paid_unfinished(run)
    facts = [
        fact(run, f"part:{other}", ends_text(run, other), onset(run.series[f"part:{other}"])) for other in rising[:2]
    ]
    facts += [fact(run, f"part:{name}", ends_text(run, name))] if rising else []
    facts += [unfinished] if unfinished else []
    if better and not worse and not unfinished:
        return None
    if feature and not (truth is None and trend(part) > 0):
        facts.append(shown(feature[1], feature[0]))
    rose = run.trend("score") > 0
    stalled = held_out is not None and held_out[0] <= 0.02 and 0 < max(run.values("held_out")) < SOLVED
    if rose and stalled:
        scores, points = (run.first("score"), run.last("score")), run.values("held_out")
        text = f"the score rose from {scores[0]:.3g} to {scores[1]:.3g}"
        facts.append(
            fact(run, "held_out", f"{text}, the held-out figure went from {points[0]:.3g} to {points[-1]:.3g}")
        )
    step = onset(run.series["score"]) if run.series.get("score") else None
    if not facts or len(run.steps()) < TREND_STEPS:
        return None
    sure = (rising and (rose or worse)) or (feature and (worse or (stalled and rose))) or unfinished
    return Evidence(CERTAIN + 0.02 if sure else LIKELY, facts, since=step) if sure or (rose and stalled) else None


def ends_text(run: LoggedRun, part: str) -> str:
    """Where a part began and ended."""
    begin, end = ends(run.parts()[part]) if part in run.parts() else ends(run.values("score"))
    return f"{part} went from {begin:.3g} to {end:.3g}"


PART_BOUGHT = Cause(
    "part_bought",
    "the policy buys one part of the reward at the cost of the answer",
    find_part_bought,
    f"{STILL} {LOST} limit_too_short no_group_variance critic_useless too_sparse memorised_prompts "
    "updates_too_large kl_holds_policy",
    "pay that part only beside a right answer, or not at all; go on from the checkpoint with the best held-out figure",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "Gao 2022, scaling laws for reward over-optimisation; limit r = 0.5: our heuristic",
    breaks=True,
)


# ------------------------------------------------------------------- part dies (src/parts/reading/causes/part_dies.py)


def dying_turn(run: LoggedRun) -> Evidence | None:
    """Rewards of a later turn that were paid early and are not any more, in logged conversations."""
    rows = [
        (row.get("step", 0), row["turn_rewards"]) for row in run.samples if isinstance(row.get("turn_rewards"), list)
    ]
    steps = sorted({step for step, _ in rows})
    for turn in range(1, 4) if len(steps) > 1 else []:
        halves = [
            [
                x[turn]
                for step, x in rows
                if (step > steps[len(steps) // 2 - 1]) is late and len(x) > turn and x[turn] is not None
            ]
            for late in (False, True)
        ]
        if (
            len(halves[0]) >= 6
            and len(halves[1]) >= 6
            and statistics.fmean(halves[1]) < 0.2 * statistics.fmean(halves[0])
        ):
            means = [statistics.fmean(half) for half in halves]
            text = f"turn {turn + 1} paid {means[0]:.3g} in the first half and {means[1]:.3g} in the second"
            return Evidence(LIKELY + 0.2, [shown([], text)], since=steps[len(steps) // 2])
    return None


def find_part_dies(run: LoggedRun) -> Evidence | None:
    """A part that was paid falls to a fifth of it and stays there, while the score does not fall."""
    if run.trend("score") < 0:
        return None
    for name, values in run.parts().items():
        if len(values) < 6 or name == first_part(run)[0] or run.trend(f"part:{first_part(run)[0]}") < 0:
            continue
        first, last = ends(values)
        if first > 0.05 and last < 0.2 * first and trend(values) <= 0 and max(values[-3:]) < 0.5 * first:
            step = onset(run.series[f"part:{name}"])
            text = f"{name} went from {first:.3g} to {last:.3g}"
            text += f" while the score went from {run.first('score'):.3g} to {run.last('score'):.3g}"
            return Evidence(CERTAIN + 0.05, [fact(run, f"part:{name}", text, step)], since=step)
    return dying_turn(run)


PART_DIES = Cause(
    "part_dies",
    "one part of the reward, or one turn, dies while the whole rises",
    find_part_dies,
    "length_fell length_rose entropy_fell held_out_flat entropy_rose part_bought updates_too_large kl_high",
    "a weight that makes the part worth keeping, or for turns a baseline of their own (--turn_baseline turn)",
    "",
    "each part's own curve; references/environments.md, second attempts",
    breaks=True,
)


# --------------------------------------------------- memorised prompts (src/parts/reading/causes/memorised_prompts.py)


def seen_prompts(run: LoggedRun) -> tuple[int, int]:
    """(distinct training prompts, prompts drawn) of the logged samples, a step's repeats of a prompt as one."""
    drawn = {(t.step, t.prompt) for t in run.texts if t.kind == "train"}
    return len({prompt for _, prompt in drawn}), len(drawn)


def find_memorised_prompts(run: LoggedRun) -> Evidence | None:
    """The training score for correctness rose far above the held-out figure, on few distinct prompts."""
    gain, (name, part) = held_out_gain(run), first_part(run)
    held_out = run.values("held_out")
    if not gain or len(part) < 6 or max(part) > 1:
        return None
    first, last = ends(part)
    rose = last - first
    alike = first <= held_out[0] + 0.15 or min(run.series["held_out"]) > 3  # at the start, where that was measured
    held_back = alike and gain[0] <= 0.5 * rose and last >= held_out[-1] + 0.15
    if rose < 0.1 or trend(part) < 0 or not held_back:
        return None
    right, wrong = scores_by_answer([t for t in run.texts if t.kind == "train"])
    if len(right) > 8 and len(wrong) > 8 and sum(wrong) / len(wrong) > 0.5 * sum(right) / len(right):
        return None  # wrong completions are paid too: the reward is at fault
    text = f"{name} rose from {first:.3g} to {last:.3g} in training"
    text += f", held out from {held_out[0]:.3g} to {held_out[-1]:.3g}"
    facts = [fact(run, "held_out", text)]
    train = [t for t in run.texts if t.kind == "train"]
    distinct, drawn = seen_prompts(run)
    rows = run.settings.get("rows")
    if rows and rows <= 128:
        facts.append(Fact(f"the training data have {rows} distinct prompts", "data"))
    elif drawn >= 3 and distinct <= 0.7 * drawn:
        facts.append(shown(train, f"{drawn} logged draws are of {distinct} distinct prompts"))
    return Evidence(CERTAIN + 0.04 if len(facts) > 1 else LIKELY, facts, since=run_ahead(run, first, rose))


def run_ahead(run: LoggedRun, first: float, rose: float) -> int:
    """The first step whose score is half of the rise ahead."""
    name = f"part:{first_part(run)[0]}" if run.parts() else "score"
    points = sorted(run.series[name].items())
    return next((step for step, value in points if value > first + max(rose / 2, GAIN)), points[-1][0])


MEMORISED_PROMPTS = Cause(
    "memorised_prompts",
    "few prompts are learnt by heart: the training score rises, the held-out figure does not",
    find_memorised_prompts,
    f"{STILL} entropy_fell kl_high length_fell length_rose too_easy part_bought no_group_variance "
    "other_eval_task critic_useless updates_too_large",
    "more distinct prompts, each seen a few times at most; keep the checkpoint with the best held-out figure",
    "python scripts/evaluation.py on the start and the end, on other prompts of the task",
    "definition of a held-out set; gain held out below half of the gain in training",
    breaks=True,
)


# ------------------------------------------------------- other eval task (src/parts/reading/causes/other_eval_task.py)

DATA_FILES = (("data", "eval_data"), ("data.train_files", "data.val_files"))  # settings of ours and of verl


def prompt_words(prompt: str) -> set[str]:
    """A prompt's words, numbers as 0, and its signs."""
    return {re.sub(r"\d+", "0", word.lower()) for word in re.findall(r"[A-Za-z]+|\d+|[^\w\s]", prompt)}


def common_words(prompts: list[str]) -> set[str]:
    """Words that a third of the prompts have."""
    sets = [prompt_words(prompt) for prompt in prompts]
    return {word for word in set().union(*sets) if sum(word in words for words in sets) * 3 >= len(sets)}


def unlike_training(run: LoggedRun) -> Fact | None:
    """A 0/1 score of training prompts that is far from that of held-out ones, from the start and to the end."""
    (name, part), held_out, spread = first_part(run), run.values("held_out"), run.early("score_std", 1)
    if len(held_out) < 2 or len(part) < TREND_STEPS or len(run.parts()) > 1 or not spread:
        return None
    if min(part) < 0 or max(part) > 1 or abs(spread[0] - math.sqrt(part[0] * (1 - part[0]))) > 0.05:
        return None  # not 0/1: the held-out share of full marks is another figure
    count = int(run.number("batch") or 32)
    if max(held_out) > 0.05 or wilson_interval(part[0] * count, count)[0] < 0.2 or trend(part) < 0:
        return None
    text = (
        f"{name} goes from {part[0]:.3g} to {ends(part)[1]:.3g} in training and stays at {max(held_out):.3g} held out"
    )
    return fact(run, "held_out", text)


def find_other_eval_task(run: LoggedRun) -> Evidence | None:
    """Held-out prompts also train, or what most of them have in common is not what training prompts have."""
    counts = [row for row in run.rows if as_number(row.get("eval/trained_rows"))]
    same = any(a and a == b for a, b in ((run.config.get(x), run.config.get(y)) for x, y in DATA_FILES))
    if counts or (same and run.values("held_out")):
        text = "the training file is the evaluation file too"
        if counts:
            of = as_number(counts[0].get("eval/rows"))
            text = f"{counts[0]['eval/trained_rows']:.0f}" + (f" of {of:.0f}" if of else "")
            text += " evaluation prompts also occur in training"
        return Evidence(CERTAIN + 0.05, [fact(run, "held_out", f"{text}; the accuracy is inflated")])
    train = sorted({t.prompt for t in run.texts if t.kind == "train"})
    held_out = sorted({t.prompt for t in run.texts if t.kind == "eval"})
    unlike = unlike_training(run)
    if unlike:
        return Evidence(CERTAIN + 0.02, [unlike])
    if len(train) < 2 or len(held_out) < 4 or gained(run):
        return None
    a, b = common_words(train), common_words(held_out)
    if len(a & b) > 0.5 * min(len(a), len(b)) and not (b - a and a - b and len(a & b) < 0.75 * max(len(a), len(b))):
        return None
    words = [" ".join(sorted(x)[:6]) or "-" for x in (a - b, b - a)]
    text = f"training prompts have {words[0]}, held-out ones {words[1]}"
    examples = [next(t for t in run.texts if t.kind == kind) for kind in ("train", "eval")]
    rose = run.trend("score") > 0
    return Evidence(CERTAIN + 0.04 if rose else LIKELY + 0.1, [shown(examples, text)])


OTHER_EVAL_TASK = Cause(
    "other_eval_task",
    "the held-out prompts are no measure: they are of another task, or also train",
    find_other_eval_task,
    "held_out_flat memorised_prompts part_bought gold_mismatch",
    "hold out prompts of the training task: python scripts/data_loader.py FILE --split 0.1 --out train.jsonl",
    "",
    "definition of a held-out set",
)


# --------------------------------------------------------- critic useless (src/parts/reading/causes/critic_useless.py)

CRITIC_STEPS = 5  # the first ones are a critic's warm-up, whatever the settings say; its value head starts at 0


def hardly_varies(run: LoggedRun) -> bool:
    """Whether scores hardly differ any more, so that nothing is left to explain: beside the start, or their size."""
    spread = run.values("score_std")
    if not spread:
        return False
    first, last = ends(spread)
    return last < 0.25 * first or last < 0.05 * abs(run.last("score") if run.series.get("score") else 0.0)


def find_critic_useless(run: LoggedRun) -> Evidence | None:
    """Explained variance that is 0 at every step, or, beyond chance, at most 0.03 in the second half of a run.

    Near 0 in a run that learns it is no fault: a short run ends before a critic is of use.
    """
    variances = run.series.get("explained_variance", {})
    warmup = max(CRITIC_STEPS, int(run.number("critic_warmup") or 0))
    steps = [step for step in sorted(variances) if step > warmup]
    rate, lr = run.number("critic_lr"), run.number("lr") or max(run.values("lr"), default=0.0)
    if variances and rate and (rate < 1e-3 * lr or rate > 0.05):
        said = Fact(f"the critic's learning rate is {rate:g}, the policy's {lr:g}", "critic_lr")
        text = f"explained variance {run.last('explained_variance'):.3g}"
        return Evidence(CERTAIN + 0.05, [said, fact(run, "explained_variance", text)])
    if len(steps) >= CRITIC_STEPS and not is_constant(run) and max(abs(variances[step]) for step in steps) < 1e-5:
        text = f"explained variance is 0 at all steps from {steps[0]} on: the critic does not learn"
        return Evidence(CERTAIN + 0.03, [fact(run, "explained_variance", text)])
    short = len(variances) < TREND_STEPS or len(steps) < CRITIC_STEPS
    if short or is_constant(run) or hardly_varies(run) or is_solved(run):
        return None
    steps = steps[-max(CRITIC_STEPS, len(steps) // 2) :]
    values = [variances[step] for step in steps]
    middle = statistics.median(values)
    error = 1.25 * noise(values) / math.sqrt(len(values))
    learns = middle > -0.1 and (gained(run) or run.trend("score") > 0)
    if learns or (middle > 0 and middle + 2 * error > 0.03):
        return None
    text = f"explained variance {middle:.3g}, median of steps {steps[0]}-{steps[-1]}"
    facts = [fact(run, "explained_variance", text, steps[-1])]
    clip, scores = run.number("value_clip"), run.values("score")
    if clip and scores and max(map(abs, scores)) > 10 * clip:
        text = f"a rollout moves a value by {clip:g} at most, and scores reach {max(scores, key=abs):.3g}"
        facts.append(Fact(text, "value_clip"))
    return Evidence(CERTAIN, facts)


CRITIC_USELESS = Cause(
    "critic_useless",
    "the critic predicts returns no better than a constant, so advantages are as noisy as without it",
    find_critic_useless,
    f"critic_explains_little flat_score {LOST} updates_too_large nothing_moves part_bought",
    "{critic_updates}; {critic_warmup}; another {critic_lr}; where scores are well above 1 {value_clip}; or a method "
    "without a critic: {critic_free}",
    "",
    "definition of explained variance; benchmarks/README.md, the demo's critic; limit 0.03: our heuristic",
)


# ------------------------------------------------- conversation fails (src/parts/reading/causes/conversation_fails.py)


def find_conversation_fails(run: LoggedRun) -> Evidence | None:
    """No tool call at all where there are tools, or every second call in error."""
    calls, failures = run.values("tool_calls"), run.values("tool_failures")
    # where nothing was called and nothing took a moment, nothing replied either: then there are tools
    tools = run.settings.get("tools") or not any(run.values("tool_seconds"))
    if len(calls) >= 3 and not any(calls) and tools:
        return Evidence(CERTAIN, [fact(run, "tool_calls", f"not one tool call in {len(calls)} steps")])
    if len(failures) >= 3 and run.last("tool_failures") >= 0.5 and (not calls or run.last("tool_calls") > 0):
        text = f"{run.last('tool_failures'):.0%} of the tool calls come to an error"
        return Evidence(CERTAIN, [fact(run, "tool_failures", text)])
    return None


CONVERSATION_FAILS = Cause(
    "conversation_fails",
    "the model does not use its tools: it calls none, or most calls end in an error",
    find_conversation_fails,
    f"{STILL} too_hard too_sparse nothing_moves",
    "read the calls and errors in samples.jsonl; an instruct model that was trained on tools; {tool_form}",
    "",
    "definition: what is never sampled gets no gradient; every second call: our heuristic",
)


# ------------------------------------------------------------- memory grows (src/parts/reading/causes/memory_grows.py)

STRETCHES, STEPS_EACH = 6, 5  # of what is left of a run without its first tenth, in which memory still settles
GROWN, UNEVEN = 0.1, 1 / 3  # of the first stretch's memory; of the growth, which is 0.2 each where it is even


def even_growth(values: list[float]) -> tuple[float, float] | None:
    """Medians of the first and of the last stretch where each of six lies above the one before, none by most of it.

    What settles gains most at first: of a logarithm's growth 0.37 lies between the first two stretches. None where
    memory does not grow so, or by less than a tenth, or the log is short.
    """
    values = values[len(values) // 10 :]
    size = len(values) // STRETCHES
    if size < STEPS_EACH:
        return None
    middles = [statistics.median(values[i * size : (i + 1) * size]) for i in range(STRETCHES)]
    gains = [after - before for before, after in itertools.pairwise(middles)]
    grown = middles[-1] - middles[0]
    even = min(gains) > 0 and max(gains) <= UNEVEN * grown and grown > GROWN * middles[0]
    return (middles[0], middles[-1]) if even else None


def find_memory_grows(run: LoggedRun) -> Evidence | None:
    """Even growth of memory at an even length."""
    if any(run.trend(name) > 0 for name in ("length", "length_max", "turns")):
        return None
    for name in ("gpu_memory", "memory"):
        growth = even_growth(run.values(name))
        if growth:
            text = f"{run.name(name)} rose evenly from {growth[0]:.3g} to {growth[1]:.3g} GiB"
            return Evidence(CERTAIN, [fact(run, name, text)])
    return None


MEMORY_GROWS = Cause(
    "memory_grows",
    "memory grows without end: something keeps what each step made",
    find_memory_grows,
    "",
    "keep metrics as numbers (.item()), and look for lists and dicts that a reward or environment only adds to",
    "",
    "a tenth, in six even stretches: our heuristic; what settles gains most at first",
)


# ----------------------------------------------------------------------- ranking (src/parts/reading/causes/ranking.py)

CAUSES = (
    *(OVERFLOW, JUMP_AT_RESTART, NEAR_GREEDY_SAMPLING, ANSWER_FORM, GOLD_MISMATCH, CONSTANT_REWARD, INVERTED_REWARD),
    *(NOISY_REWARD, REWARD_IGNORES_ANSWER, LIMIT_TOO_SHORT, TOO_HARD, TOO_EASY, TOO_SPARSE, NO_GROUP_VARIANCE),
    *(SAMPLER_MISMATCH, STALE_WEIGHTS, UPDATES_TOO_LARGE, NOTHING_MOVES, KL_HOLDS_POLICY, PART_BOUGHT, PART_DIES),
    *(MEMORISED_PROMPTS, OTHER_EVAL_TASK, CRITIC_USELESS, CONVERSATION_FAILS, MEMORY_GROWS),
)
LEARNED, NOT_LEARNED, BROKEN, TOO_SHORT = "learned", "did not learn", "broken", "too short"


def ranked_causes(run: LoggedRun, seen: dict[str, Fact]) -> list[tuple[Cause, Evidence]]:
    """At most two causes: those that no other one explains, the surest first, then those that explain most."""
    found = [
        (cause, evidence) for cause in CAUSES if (evidence := cause.test(run)) and evidence.strength >= LIKELY - 0.2
    ]

    def weight(pair: tuple[Cause, Evidence]) -> tuple:
        cause, evidence = pair
        return evidence.strength >= CERTAIN, evidence.strength + 0.01 * sum(
            sign in seen for sign in cause.explains.split()
        )

    found.sort(key=weight, reverse=True)
    roots = [
        (cause, evidence)
        for place, (cause, evidence) in enumerate(found)
        if not any(
            cause.name in other.explains.split()
            and (other.name not in cause.explains.split() or (-stronger.strength, rank) < (-evidence.strength, place))
            and stronger.strength >= evidence.strength - 0.3
            for rank, (other, stronger) in enumerate(found)
        )
    ]
    if not roots or roots[0][1].strength < LIKELY:
        return []
    first = roots[0][1].strength
    second = [pair for pair in roots[1:] if pair[1].strength >= (CERTAIN if first >= CERTAIN else first - 0.25)]
    return [roots[0], *second[:1]]


def judged_run(run: LoggedRun, causes: list[tuple[Cause, Evidence]], seen: dict[str, Fact]) -> tuple[str, int | None]:
    """The verdict, and the step since which a run is broken."""
    gain = held_out_gain(run)
    sure = [(cause, evidence) for cause, evidence in causes if evidence.strength >= CERTAIN]
    broken = [(cause, evidence) for cause, evidence in sure if cause.breaks]
    lost = seen.get("score_fell")
    if broken or lost:
        steps = [evidence.since for _, evidence in broken if evidence.since is not None] + ([lost.step] if lost else [])
        return BROKEN, min(steps, default=min(run.steps(), default=1))
    if gain and gain[2] < 0 and gain[0] < -GAIN:
        return BROKEN, min((step for step in run.series["held_out"] if step), default=None)
    works = gain[1] > 0 if gain else trend(first_part(run)[1]) > 0
    if works and gained(run) and not any(cause.name != "critic_useless" for cause, _ in sure):
        return LEARNED, None
    hopeless = [cause for cause, _ in sure if cause.name not in ("critic_useless", "memory_grows")]
    if hopeless or (is_flat(run.values("score")) and not (gain and gain[2] > 2 * GAIN)):
        return NOT_LEARNED, None
    if gain and gain[2] < GAIN and len(run.steps()) >= 2 * TREND_STEPS:
        return NOT_LEARNED, None
    return TOO_SHORT, None


def what_was_read(run: LoggedRun) -> tuple[list[str], list[str]]:
    """What the run left, and what more would decide."""
    known = (
        (f"{run.format}, {len(run.steps())} steps", bool(run.steps())),
        (f"settings ({run.settings_file or 'beside the log'})", bool(run.config or run.settings_file)),
        (f"{len(run.texts)} samples", bool(run.texts)),
        ("gold answers", any(t.gold for t in run.texts)),
        ("the reward's source", bool(run.reward_source)),
        ("a held-out figure", len(run.values("held_out")) > 1),
    )
    had = [name for name, there in known if there]
    missing = (
        ("the score under a known name: --columns reward=NAME", bool(run.series.get("score"))),
        ("settings: --settings FILE", known[1][1]),
        ("samples with scores (samples.jsonl, log_completions=True, trainer.rollout_data_dir)", known[2][1]),
        (
            "scores of the samples: --rescore --reward FILE.py:function",
            not run.texts or any(t.score is not None for t in run.texts),
        ),
        ("gold answers of the samples: --data FILE", known[3][1] or not known[2][1]),
        ("the reward's source: --reward FILE.py:function", known[4][1]),
        ("two held-out evaluations", known[5][1]),
        ("the spread of scores of a step", bool(run.series.keys() & {"score_std", "zero_std", "score_max"})),
    )
    return had, [name for name, there in missing if not there]


def diagnose(run: LoggedRun) -> dict:
    """A run's verdict, causes and what they rest on, as plain data."""
    seen = signs(run)
    causes = ranked_causes(run, seen)
    verdict, since = judged_run(run, causes, seen)
    words = SETTINGS[run.trainer] | {"reward": first_part(run)[0] if run.parts() else "NAME"}
    had, lacked = what_was_read(run)
    facts = {"path": run.path, "format": run.format, "trainer": run.trainer}
    steps = run.steps() or [step for _, step, _ in run.broken]
    explained = {name for cause, _ in causes for name in cause.explains.split()}
    return facts | {
        "steps": [min(steps), max(steps)],
        "verdict": verdict,
        "since_step": since,
        "causes": [
            {
                "cause": cause.name,
                "certainty": "certain" if evidence.strength >= CERTAIN else "likely",
                "says": cause.says,
                "evidence": [as_json(fact) for fact in evidence.facts],
                "explains": [seen[sign].text for sign in seen if sign in cause.explains.split()],
                "decide_with": command_for(run, cause, words)
                if len(causes) > 1 or evidence.strength < CERTAIN
                else None,
                "change": cause.change.format(**words),
                "source": cause.source,
            }
            for cause, evidence in causes
        ],
        "unexplained": [fact.text for sign, fact in seen.items() if sign not in explained],
        "had": had,
        "lacked": lacked,
        "remarks": run.remarks,
    }


def as_json(fact: Fact) -> dict:
    """A fact as plain data."""
    return asdict(fact) | {"samples": list(fact.samples)}


def command_for(run: LoggedRun, cause: Cause, words: dict) -> str | None:
    """The command that tells whether it is this cause."""
    return cause.decide_with.replace("RUN", run.path).format(**words) or None


# ---------------------------------------------------------- report and plot (src/programs/diagnose/report_and_plot.py)

SHOWN_TEXT = 160  # characters of a sample that is shown


def print_verdict(run: LoggedRun, data: dict) -> None:
    """A run's verdict for a person."""
    first, last = data["steps"]
    since = f" since step {data['since_step']}" if data["since_step"] is not None else ""
    tell(f"{data['path']}: {data['trainer']}, {data['format']}, steps {first}-{last}: {data['verdict']}{since}")
    texts = {text.id: text for text in run.texts}
    for cause in data["causes"]:
        tell(f"\n  {cause['certainty'].upper()} {cause['cause']}: {cause['says']}")
        for item in cause["evidence"]:
            place = f"  ({item['figure']}{'' if item['step'] is None else ', step {step}'.format(**item)})"
            tell(f"    saw       {item['text']}{place if item['figure'] else ''}")
            for id in item["samples"][:3]:
                text = texts[id]
                score = "" if text.score is None else f"{text.score:.3g}"
                tell(f"              {id} score {score} gold {text.gold}: {text.completion[-SHOWN_TEXT:]!r}")
        for text in cause["explains"]:
            tell(f"    explains  {text}")
        tell(f"    change    {cause['change']}")
        if cause["decide_with"]:
            tell(f"    to decide {cause['decide_with']}")
        tell(f"    source    {cause['source']}")
    for text in data["unexplained"] if data["verdict"] != "learned" else []:
        tell(f"  seen: {text}")
    for text in data["remarks"]:
        tell(f"  note: {text}")
    tell(f"\n  had: {', '.join(data['had'])}")
    if data["lacked"]:
        tell(f"  would decide more: {'; '.join(data['lacked'])}")


MARK = {"rotation": 90, "ha": "right", "va": "center", "color": "tab:red", "fontsize": 8}
PANELS = [
    ("score and held-out", ["score", "held_out"]),
    ("groups without signal, truncated, clipped (share)", ["zero_std", "truncated", "clip_frac"]),
    ("completion length (tokens)", ["length"]),
    ("entropy (nats a token)", ["entropy"]),
    ("KL: to the reference, of a step, to the sampler", ["kl", "kl_step", "mismatch_kl"]),
    ("gradient norm", ["grad_norm", "critic_grad_norm"]),
    ("explained variance", ["explained_variance"]),
    ("ratio and importance weights", ["ratio_max", "weight_mean", "weight_ess"]),
]


def draw(runs: list[LoggedRun], reports: list[dict], target: Path) -> None:
    """Draw the figures of the causes; evidence of a single run is marked at its step."""
    panels = []
    for title, names in PANELS:
        lines = {}
        for run in runs:
            suffix = f" · {Path(run.path).parent.name or run.path}" if len(runs) > 1 else ""
            lines |= {run.names.get(n, n) + suffix: sorted(run.series[n].items()) for n in names if run.series.get(n)}
        if lines:
            panels.append((title, lines))
    titles = []
    for report in reports:
        names = [cause["cause"] for cause in report["causes"]]
        titles.append(f"{report['path']}: {', '.join([report['verdict'], *names])}")
    figure = draw_panels(panels, "\n".join(titles))
    marks = [(c["cause"], e) for c in reports[0]["causes"] for e in c["evidence"]] if len(runs) == 1 else []
    for axis, (_, lines) in zip(figure.axes, panels, strict=False):
        for name, item in marks:
            if item["figure"] in lines and item["step"] is not None:
                axis.axvline(item["step"], color="tab:red", linestyle="--", linewidth=1)
                axis.text(item["step"], 0.5, name, transform=axis.get_xaxis_transform(), **MARK)
    try:
        figure.savefig(target, dpi=100)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"got --plot {target} ({error}); expected a name such as curves.png") from None


# ---------------------------------------------------------------------- rescoring (src/programs/diagnose/rescoring.py)

TRIAL = '''\
def trial():
    """Call the reward named on standard input's first line as the JSON after it says; print its scores."""
    import inspect
    import json
    import sys

    given = json.load(sys.stdin)
    function, rows = globals()[given["function"]], given["rows"]
    names = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())

    def scores(rows):
        if "completions" in names:
            columns = {key: [row["columns"].get(key) for row in rows] for row in rows for key in row["columns"]}
            columns |= {"prompts": [row["prompt"] for row in rows], "completions": [row["completion"] for row in rows]}
            return function(**{key: value for key, value in columns.items() if takes_any or key in names})
        values = []
        for row in rows:
            gold = row["columns"].get("ground_truth", row["gold"])
            whole = row["columns"] | {"prompt": row["prompt"], "completion": row["text"], "solution_str": row["text"]}
            whole |= {"ground_truth": gold, "data_source": "", "extra_info": row["columns"]}
            value = function(**{key: value for key, value in whole.items() if takes_any or key in names})
            values.append(value["score"] if isinstance(value, dict) else value)
        return values

    calls = [rows, rows] if given["how"] == "twice" else [[row] for row in rows] if given["how"] == "alone" else [rows]
    found = [list(scores(call)) for call in calls]
    values = found[-1] if given["how"] != "alone" else [value for call in found for value in call]
    print("=" + " ".join("-" if value is None else f"{float(value):.4g}" for value in values) + "=")


trial()
'''
TRIED = 12  # samples of a trial; the sandbox shows some 200 characters of what is printed
NOT_COLUMNS = (
    *("step", "kind", "prompt", "completion", "score", "rewards", "finished", "advantage", "columns", "messages"),
    *("token_lengths", "logprobs", "advantages", "ended_by", "turn_rewards", "pieces"),
)
NONSENSE = "zxqv nothing of this kind"


def reward_file(spec: str, run: LoggedRun, folder: Path) -> tuple[Path, str]:
    """File and function of the reward: as given, or the first one of the run's settings."""
    named = run.settings.get("reward") or []
    spec = spec or next(iter([named] if isinstance(named, str) else named), "")
    file, _, name = spec.partition("*")[0].rpartition(":")
    path = next((path for path in (Path(file), folder / Path(file).name) if file and path.is_file()), None)
    if path is None or not name:
        raise UnreadableError(
            f"got --rescore with the reward {spec!r}; expected its file; try --reward FILE.py:function"
        )
    names = {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")}
    if name not in names:
        raise UnreadableError(
            f"got --reward {spec}; expected a function of {path}: {', '.join(sorted(names)) or 'none'}"
        )
    return path, name


def trial_rows(run: LoggedRun, columns: dict[str, dict]) -> list[dict]:
    """Logged samples of distinct prompts and texts, with their columns, as the trial wants them."""
    rows, seen = [], set()
    for text, sample in zip(
        run.texts, [s for s in run.samples if isinstance(s.get("completion"), (str, list))], strict=True
    ):
        own = {k: v for k, v in sample.items() if k not in NOT_COLUMNS} | (sample.get("columns") or {})
        key = (text.prompt, text.completion)
        if key not in seen and len(rows) < TRIED:
            chat = isinstance(sample.get("prompt"), list)
            said = [{"role": "assistant", "content": text.completion}] if chat else text.completion
            rows.append(
                {"prompt": sample.get("prompt"), "completion": said, "text": text.completion, "gold": text.gold}
            )
            rows[-1] |= {"columns": columns.get(text.prompt, {}) | own, "right": text.right}
            seen.add(key)
    return rows


def with_text(row: dict, text: str) -> dict:
    """A row whose completion is another text."""
    said = [{"role": "assistant", "content": text}] if isinstance(row["completion"], list) else text
    return row | {"completion": said, "text": text}


def sandbox_scores(code: str, trials: list[dict]) -> list[list[float | None]]:
    """The scores that each trial prints, run by scripts/sandbox.py."""
    script = BUNDLE / "scripts" / "sandbox.py"
    if not script.is_file():
        raise UnreadableError(f"got --rescore without {script}, which confines the reward; expected it there")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        tests = [{"input": json.dumps(trial), "output": "?"} for trial in trials]
        file.write(json.dumps({"completion": code, "tests": tests}) + "\n")
        file.flush()
        command = [sys.executable, str(script), "--data", file.name, "--timeout_s", "20", "--memory_mb", "2048"]
        done = subprocess.run(command, capture_output=True, text=True)
    try:
        results = json.loads(done.stdout)["results"]
    except (ValueError, KeyError):
        raise UnreadableError(f"got --rescore, and the sandbox did not run: {done.stderr.strip()[-300:]}") from None
    scores = []
    for result in results:
        match = re.search(r"=([-\d.e+ naif]*)=", result["detail"])
        if not match:
            raise UnreadableError(f"got --rescore, and the reward failed in the sandbox: {result['detail'][-300:]}")
        scores.append([None if word == "-" else float(word) for word in match[1].split()])
    return scores


def rescore(run: LoggedRun, spec: str, data: str) -> None:
    """Put what the trials say into `run.trials`, for the causes that they decide."""
    folder = Path(run.path).parent
    path, name = reward_file(spec, run, folder)
    rows = trial_rows(run, dict(data_rows(data or str(run.settings.get("data") or ""), folder)))
    if not rows:
        raise UnreadableError("got --rescore and no samples; expected samples.jsonl beside the log, or --samples FILE")
    code = path.read_text(encoding="utf-8").partition('if __name__ == "__main__"')[0] + TRIAL
    golds = [row for row in rows if row["gold"] is not None]
    trials = {how: {"how": how, "rows": rows} for how in ("logged", "twice", "alone")}
    trials["reversed"] = {"how": "logged", "rows": rows[::-1]}
    trials["nonsense"] = {"how": "logged", "rows": [with_text(row, NONSENSE) for row in rows]}
    for i, form in enumerate(MARK_FORMS if golds else ()):
        trials[f"gold {i}"] = {"how": "logged", "rows": [with_text(row, form.format(row["gold"])) for row in golds]}
    found = sandbox_scores(code, [trial | {"function": name} for trial in trials.values()])
    scores = dict(zip(trials, found, strict=True))
    run.reward_source = run.reward_source or path.read_text(encoding="utf-8")
    run.trials = conclusions(scores)


def conclusions(scores: dict[str, list]) -> dict[str, str]:
    """{what a trial decides: what was seen}."""
    logged, said = scores["logged"], {}
    if any(a != b for a, b in zip(logged, scores["twice"], strict=True)):
        said["twice"] = "the same samples scored differently when scored twice"
        return said
    if any(a != b for a, b in zip(logged, scores["alone"], strict=True)):
        said["alone"] = "samples score differently alone and in a batch"
    elif any(a != b for a, b in zip(logged, scores["reversed"][::-1], strict=True)):
        said["alone"] = "samples score differently in another order of the batch"
    forms = [values for how, values in scores.items() if how.startswith("gold")]
    paid = [[x for x in values if x is not None] for values in zip(*forms, strict=True)]
    gold = [max(values) for values in paid if values]  # in the form that pays most
    nonsense = [x for x in scores["nonsense"] if x is not None]
    everything = {*gold, *nonsense, *(x for x in logged if x is not None)}
    if len(everything) == 1 and gold:
        said["constant"] = f"gold answers, nonsense and logged samples all score {gold[0]:.4g}"
    elif gold and nonsense and max(gold) < min(nonsense):
        said["inverted"] = f"gold answers score at most {max(gold):.4g}, nonsense {min(nonsense):.4g}"
    elif gold and nonsense and abs(sum(gold) / len(gold) - sum(nonsense) / len(nonsense)) < 1e-9:
        said["indifferent"] = f"gold answers and nonsense both score {gold[0]:.4g} in the mean"
    return said


# -------------------------------------------------------------------------- command (src/programs/diagnose/command.py)


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN_OR_FILE", help="run folder or log, see above; several are read in turn"
    )
    parser.add_argument("--json", action="store_true", help="verdicts as JSON on standard output (default: text)")
    parser.add_argument(
        "--plot", metavar="FILE.png", type=Path, help="draw the curves, evidence marked (default: none)"
    )
    parser.add_argument("--overwrite", action="store_true", help="let --plot replace a file (default: refuse)")
    text = "completions per prompt, where the log does not say (default: 0, from the run's settings)"
    parser.add_argument("--group_size", "--group-size", type=int, default=0, metavar="G", help=text)
    text = f"names in this log of the figures that are looked at: {', '.join(FIGURES)} (default: known names)"
    parser.add_argument("--columns", nargs="+", metavar="FIGURE=NAME", default=[], help=text)
    for name, text in (
        ("settings", "settings that lie elsewhere: YAML, JSON, a shell or a Python script, which is not run"),
        ("samples", "samples that lie elsewhere: JSONL, CSV or parquet with prompt, completion, score"),
        ("data", "training data, for gold answers by prompt: JSONL, JSON, CSV or parquet"),
        ("reward", "FILE.py:function of the reward, to read, and for --rescore to run"),
    ):
        parser.add_argument(f"--{name}", default="", metavar="FILE", help=f"{text} (default: beside the log)")
    text = "run the reward on logged samples, gold and nonsense, in a process of its own (default: run no code)"
    parser.add_argument("--rescore", action="store_true", help=text)
    return parser


def named_columns(pairs: list[str]) -> dict[str, str]:
    """The pairs of --columns, checked."""
    columns = {}
    for pair in pairs:
        figure, _, name = pair.partition("=")
        known = figure in FIGURES and name
        need_log(known, f"got --columns {pair}; expected FIGURE=NAME with a figure of {', '.join(FIGURES)}")
        columns[figure] = name
    return columns


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    args = parse_flags(command_line(), [word for word in words if word != "-"])  # `--json -` is --json
    runs, reports, failed = [], [], []
    extras = Extras(args.settings, args.samples, args.data, args.reward, args.group_size)
    for source in args.runs:
        try:
            run = load_run(source, named_columns(args.columns), extras)
            if args.rescore:
                rescore(run, args.reward, args.data)
            reports.append(diagnose(run))
            runs.append(run)
        except UnreadableError as error:
            failed.append({"path": source, "verdict": "unreadable", "error": str(error)})
            print(f"error: {error}", file=sys.stderr)
    try:
        if args.plot and runs:
            free = args.overwrite or not args.plot.exists()
            need_log(free, f"got --plot {args.plot}, which exists; expected a new name; try --overwrite")
            draw(runs, reports, args.plot)
    except UnreadableError as error:
        failed.append({"path": str(args.plot), "verdict": "unreadable", "error": str(error)})
        print(f"error: {error}", file=sys.stderr)
    found = any(report["causes"] or report["verdict"] not in (LEARNED, TOO_SHORT) for report in reports)
    code = 2 if failed else 1 if found else 3 if any(r["verdict"] == TOO_SHORT for r in reports) else 0
    if args.json:
        everything = reports + failed
        alone = everything[0] if len(everything) == 1 else {}  # the fields of a single run stand at the top too
        tell(json.dumps({**alone, "runs": everything, "exit_code": code}, indent=1))
    else:
        for i, (run, data) in enumerate(zip(runs, reports, strict=True)):
            tell("\n" * (i > 0), end="")
            print_verdict(run, data)
    return code


if __name__ == "__main__":
    sys.exit(main())
