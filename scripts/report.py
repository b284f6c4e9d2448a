#!/usr/bin/env python3
# Built from src/programs/report/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["jinja2>=3.1", "plotly>=6,<8", "numpy>=1.26", "pyarrow"]
# ///
"""Make one HTML page of a run, or of several beside one another: outcome, curves, samples, settings, time.

A RUN is what diagnose.py reads (a run's folder, metrics.jsonl, TRL's trainer_state.json, verl's console output or file
log), or a folder or results.json of evaluation.py. The page is one file without a network: mail it, open it from disk.

    top          without JavaScript: held-out figure before and after with its interval, best step, samples and seconds,
                 what diagnose.py finds with cause and remedy, and what differs between the runs
    curves       of all runs, overlaid: hover, zoom, smoothing, log scale; seeds of one setting as a band
    samples      a table with filters; a group's completions side by side; held-out prompts before and after; turns
    settings     those that differ, versions, the command to repeat a run
    time         where a step's seconds go, tokens per second, memory where it is logged
    evaluations  tables with intervals, and the paired test against the first one

Runs that differ in their seed only are one setting. What a log has of values that are not finite, torn lines or steps
that are missing stands on the page. Text from models is data: it is compressed in the page, shown as text only, and a
content security policy lets no script run but the page's own. The curves are plotly's (MIT), 2 MB of the page.

Deliberately left out: a server, trackers' own formats (wandb, tensorboard), and figures that no log has.

    python scripts/report.py runs/first
    python scripts/report.py runs/a runs/b ev/before ev/after --output report.html
    python scripts/report.py runs/long --watch 30

Exit codes: 0 the page is written, 2 bad input; a page of the readable ones is written where others are not.
"""

# Contents
#        88-119  messages             Errors that a user can mend, each with its exit code, and what is said on stderr
#       122-253  dialect              One setting under several names: ours, those of the pages, and TRL's. A program …
#       256-276  settings             Settings: a dataclass whose fields are flags and YAML keys, and the checks that …
#       279-290  output folder        The output folder: whose run it holds, folders that appear whole or not at all, …
#       293-416  paired tests         Intervals, paired tests, pass@k
#       419-461  evaluation results   results.json of evaluation.py: reading it, and two of them compared row by row
#       464-699  metric names         Names of metrics and settings in three kinds of logs
#       702-951  finding advice       Findings and notes: cause, remedy, source
#      954-1050  trends               Trends of a series
#     1053-1199  logged run           A run as its log shows it
#     1202-1308  sample dumps         Samples that other trainers leave beside their logs: verl's dumps of rollouts, …
#     1311-1370  plain logs           Logs of no framework: CSV files, lines of name=value, and the columns that …
#     1373-1460  run settings         What the checks want to know of a run's settings: ours, those of a page, verl's
#     1463-1799  log reading          Reading the logs: ours, TRL's, verl's
#     1802-1948  reward findings      Checks of the reward: equal scores, groups without signal, held-out prompts, …
#     1951-2019  completion findings  Checks of completions: cut off, repeated; of conversations: limits, tools
#     2022-2209  update findings      Checks of the updates: ratio, sampler, KL, critic, gradients, learning rate, …
#     2212-2386  findings             All checks of a run, and its verdict
#     2389-2662  metric groups        Metrics of three kinds of logs under one name, in groups, each with what it means
#     2665-2747  sources              What the command line names: runs and evaluations, read, and what of them …
#     2750-2952  run facts            What the top of the page says of a run
#     2955-3050  run curves           The curves of all runs as plain data, and which runs are seeds of one setting
#     3053-3089  small curve          A small drawing of a run for the top of the page, which needs no JavaScript
#     3092-3136  time table           Where the seconds of a step go, how fast it samples, how much memory it takes, …
#     3139-3173  evaluation tables    Tables of evaluations, and the paired tests against the first
#     3176-3237  sample rows          Samples of all sources as rows of plain data for the page's table
#     3240-3309  packing              Data compressed for the page: base64 of gzip, which browsers unpack by themselves
#     3312-4475  page                 The page
#     4478-4578  command              The command line

import argparse
import ast
import base64
import csv
import datetime
import difflib
import io
import itertools
import json
import math
import os
import re
import secrets
import shlex
import statistics
import sys
import time
import unicodedata
import zlib
from collections.abc import Iterable
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


# -------------------------------------------------------------------- paired tests (src/parts/reading/paired_tests.py)

Z95, Z_POWER = 1.959963984540054, 0.8416212335729143  # normal quantiles of 97.5 % and of 80 % power


def wilson_interval(successes: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Score interval of a proportion (Wilson 1927), also for 0 and n successes."""
    p, shrink = successes / n, 1 + z * z / n
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
        """Whether all values are 0 or 1."""
        return self.bottom is None and not self.exp and all(x in (0, 1) for x in self.top if x is not None)


def compare_values(before: Values, after: Values, samples: int, seed: int) -> dict | None:
    """Paired test of two runs' values on the same rows, in the same order; None without a row that both have."""
    rows = [i for i, pair in enumerate(zip(before.top, after.top, strict=True)) if None not in pair]
    n = len(rows)
    if not n:
        return None
    (a, a_base), (b, b_base) = before.columns(rows), after.columns(rows)
    if not sum(a_base) or not sum(b_base):  # a share of nothing
        return None
    one, two = (float(v.of(math.fsum(x) / math.fsum(y))) for v, x, y in ((before, a, a_base), (after, b, b_base)))
    result = {"before": one, "after": two, "difference": two - one, "rows": n}
    if before.is_proportion() and after.is_proportion():
        up, down = (sum(x < y for x, y in pair) for pair in (zip(a, b, strict=True), zip(b, a, strict=True)))
        result |= {"test": "exact McNemar", "p": mcnemar_exact(up, down), "better": up, "worse": down}
        result["ci95"] = list(paired_proportion_interval(up, down, n))
        stderr = math.sqrt(max(0.0, (up + down) / n - ((up - down) / n) ** 2) / n)
    elif n > 1:
        import numpy as np

        sums = resampled_ratios([a, a_base, b, b_base], samples, seed)
        sums = sums[(sums[:, 1] != 0) & (sums[:, 3] != 0)]
        draws = after.of(sums[:, 2] / sums[:, 3]) - before.of(sums[:, 0] / sums[:, 1])
        result["ci95"] = [float(x) for x in np.quantile(draws, [0.025, 0.975])]
        # the draws around their own centre are what chance does where there is no difference
        far = (abs(draws - result["difference"]) >= abs(result["difference"]) * (1 - 1e-12)).sum()
        result |= {"test": "paired bootstrap", "p": float((far + 1) / (len(draws) + 1))}
        stderr = float(draws.std(ddof=1))
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


# -------------------------------------------------------- evaluation results (src/parts/reading/evaluation_results.py)


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
    "entropy": "--entropy_coef",
    "clip_high": "--clip_eps_high",
    "reuse": "--ppo_epochs and --minibatches",
    "target": "--target_kl 0.02 (ends an update early)",
    "critic_lr": "--critic_lr",
    "critic_warmup": "--critic_warmup_steps 10",
    "critic_updates": "--minibatches 4, with a lower --lr, as the policy gets them too",
    "value_clip": "--value_clip 0",
    "critic_free": "--algorithm grpo or rloo",
    "grad_clip": "--max_grad_norm",
    "overlong": "--missing_eos_penalty, or DAPO's soft penalty with --overlong_share 0.2",
    "filter": "--dynamic_sampling true",
    "mismatch": "--mismatch tis",
    "precision": "--precision bf16 (or fp32)",
    "batch": "--batch_size",
    "turns": "--max_turns or --max_conversation_tokens",
    "tool_form": "--tool_format",
    "tool_time": "--tool_timeout",
}
PAGE_SETTINGS = PPO_SETTINGS | {
    "entropy": "entropy bonus (the page has none: subtract it from the loss)",
    "reuse": "--epochs and --minibatches",
    "target": "--epochs 1",
    "critic_free": "templates/grpo.py",
    "grad_clip": "the bound of clip_grad_norm_",
    "overlong": "a score of 0 for completions that were cut",
    "filter": "a training file without the prompts that all or none solve",
    "mismatch": "scripts/ppo_train.py --mismatch tis",
    "precision": "weights in float32, as the page has them",
    "batch": "number of completions of a step",
    "turns": "--max_turns or --max_tokens",
    "tool_form": "what the page takes for a call",
    "tool_time": "a time limit in the tool",
}
TRL_SETTINGS = {
    "lr": "learning_rate",
    "group": "num_generations",
    "temperature": "temperature",
    "length": "max_completion_length",
    "kl": "beta",
    "entropy": "entropy_coef",
    "clip_high": "epsilon_high",
    "reuse": "num_iterations and steps_per_generation",
    "target": "num_iterations=1",
    "critic_lr": "the critic's learning rate",
    "critic_warmup": "a critic warm-up",
    "critic_updates": "smaller minibatches",
    "value_clip": "no clip of values",
    "critic_free": "no critic, as GRPO and RLOO",
    "grad_clip": "max_grad_norm",
    "overlong": "trl.rewards.get_soft_overlong_punishment as a further reward, or mask_truncated_completions=True",
    "filter": "a data set without the prompts that all or none solve (TRL has no dynamic sampling)",
    "mismatch": "vllm_importance_sampling_correction=True",
    "precision": "bf16=True with weights in float32, in place of fp16=True",
    "batch": "gradient_accumulation_steps",
    "turns": "max_tool_calling_iterations or max_completion_length",
    "tool_form": "a tokenizer with a response schema",
    "tool_time": "a time limit in the tool (TRL sets none)",
}
GRPO_SETTINGS = {word: f"--{name}" if name.isidentifier() else name for word, name in TRL_SETTINGS.items()} | {
    "reuse": "--num_iterations and --steps_per_generation",
    "target": "--num_iterations 1",
    "overlong": "the library's soft_overlong_punishment as a further --reward, or --mask_truncated_completions",
    "filter": "a training file without the prompts that all or none solve (TRL has no dynamic sampling)",
    "mismatch": "--trainer_args vllm_importance_sampling_correction=true",
    "precision": "--precision bf16 (or fp32)",
    "turns": "--max_turns or --max_conversation_tokens",
    "tool_form": "--tool_format",
    "tool_time": "--tool_timeout",
}
VERL_SETTINGS = {
    "lr": f"{ACTOR}.optim.lr",
    "group": "actor_rollout_ref.rollout.n",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "length": "data.max_response_length",
    "kl": f"{ACTOR}.kl_loss_coef (use_kl_loss=True), or algorithm.kl_ctrl.kl_coef (use_kl_in_reward=True)",
    "entropy": f"{ACTOR}.entropy_coeff",
    "clip_high": f"{ACTOR}.clip_ratio_high",
    "reuse": f"{ACTOR}.ppo_epochs, or a larger {ACTOR}.ppo_mini_batch_size",
    "target": f"{ACTOR}.ppo_epochs=1",
    "critic_lr": "critic.optim.lr",
    "critic_warmup": "trainer.critic_warmup=10",
    "critic_updates": "critic.ppo_mini_batch_size a quarter of the batch, or a larger critic.ppo_epochs",
    "value_clip": "critic.cliprange_value=1000 (as good as off)",
    "critic_free": "algorithm.adv_estimator=grpo or rloo",
    "grad_clip": f"{ACTOR}.grad_clip",
    "overlong": "reward.reward_manager.name=dapo with its overlong_buffer_cfg",
    "filter": "algorithm.filter_groups.enable=True",
    "mismatch": "algorithm.rollout_correction.rollout_is=token",
    "precision": f"{ACTOR}.fsdp_config.dtype=bfloat16 with model_dtype=fp32",
    "batch": "data.train_batch_size",
    "turns": "actor_rollout_ref.rollout.multi_turn.max_assistant_turns or data.max_response_length",
    "tool_form": "actor_rollout_ref.rollout.multi_turn.format",
    "tool_time": "a time limit in the tool",
}
SETTINGS = {
    "ppo_train": PPO_SETTINGS,
    "one_page": PAGE_SETTINGS,
    "grpo_train": GRPO_SETTINGS,
    "trl": TRL_SETTINGS,
    "verl": VERL_SETTINGS,
}


# ---------------------------------------------------------------- finding advice (src/parts/reading/finding_advice.py)

ADVICE_TEXT = """\
# findings
not-finite: an update too large, a log-prob of -inf (a token the policy cannot sample), or fp16 overflow
  - lower {lr}
  - {precision}
  - keep {grad_clip} at 1
  - go on from a checkpoint before this step
  = definition; unsloth#3006, verl#2505
constant-reward: the function pays every completion the same (a placeholder, answers not extracted, a wrong column, a
    number compared with a text, an exception turned into a constant), or the model is never, or always, right; the
    log cannot tell which, the first three steps do
  - read the function {reward}, and completions beside their scores (samples.jsonl)
  - score gold answers without a model: scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA; where they
    have no full marks the function is at fault: mend it
  - where they have, the same with --model MODEL says how often the model is right; near 0: easier prompts, partial
    credit, or a warm start (scripts/warm_start.py); near 1: harder prompts
  - raise {length} if completions are cut
  - then begin anew from the first model, no resume; a loss near 0 stays normal, a gradient of 0 does not
  = definition: equal scores give advantage 0; open-r1#255, verl#3024, trl#5697
no-signal: most groups score all alike, so their advantages are 0 and only the rest of the batch teaches
  - prompts that the model solves sometimes
  - raise {group}
  - {filter}
  - a finer reward (partial credit)
  = forecast: binomial; DAPO (Yu 2025), section 3.2; limit 0.8, our heuristic: under a fifth of the batch teaches
group-size-1: an advantage relative to the group has nothing to compare one completion with: it is 0, or the raw score
  - raise {group} to 8 or more
  - or use an estimator without groups (PPO with a critic, ReMax, REINFORCE++)
  = definition; prime-rl docs/training.md advises at least 8
cold-sampling: sampling is nearly greedy: completions of a prompt hardly differ, so neither do their scores
  - raise {temperature} to 1.0, also for models whose card advises less for use
  = definition (entropy of the sampling distribution); limits 0.2 and 0.01 nats: our heuristic: nearly every token has
    one choice
truncation: completions hit the length limit before their end token: the score judges the limit, not the answer
  - raise {length}
  - shorten what the prompt asks for
  - {overlong}
  = TRL completions/clipped_ratio; trl#5697; limit 0.2: our heuristic: one score in five is about the limit
paid-unfinished: the reward finds the answer and pays whatever stands behind it, so nothing teaches the model to stop,
    and a larger limit makes longer texts
  - read the ends of paid completions
  - pay only where nothing follows the answer
  - {overlong}
  = counting: with scores up to 1, at least mean + share cut - 1 are both; limits 0.2 and half of either: our
    heuristic: then the two go together
no-tool-calls: the environment has tools and the model calls none: it does not know them, writes calls in a form that
    is not read, or has no need of them; what it never does cannot be paid
  - read what it writes: pieces in samples.jsonl
  - an instruct model that was trained on tools, or one that was shown calls (SFT)
  - {tool_form}, where it writes calls in another form
  - say in the prompt that there are tools, and when to call them
  = definition: an answer that is never sampled gets no gradient
tool-failures: most calls come to an error: they cannot be read, name no tool, have wrong arguments, or the tool
    raises or gives no answer in time
  - read the errors: messages of the role tool in samples.jsonl
  - {tool_form}, where none can be read
  - arguments with plain types, each described in the docstring
  - {tool_time}, where they say that there was no answer
  = our heuristic: every second call
turn-limit: conversations do not come to their end: too few turns or tokens, an environment that never ends one, or a
    model that goes on calling
  - raise {turns}
  - an environment that ends with the task (a reply of None)
  - pay what ends early
  = our heuristic: most returns are of conversations that were broken off
length-collapse: short completions pay as well as long ones, or an update destroyed the policy
  - read completions: is the answer still there?
  - a reward for the answer, not for brevity; check length penalties
  - lower {lr}
  - raise {kl}
  = our heuristic: half the starting length, and the held-out figure did not gain by it
length-runaway: length itself pays (a reward that grows with it, or a loss averaged per completion, which hardly
    punishes long wrong answers), or the end token is forgotten
  - look for a reward that grows with length
  - {overlong}
  - aggregate the loss over tokens (DAPO) or by a constant (Dr. GRPO)
  = Dr. GRPO (Liu 2025), section 3.1, on the length bias; limit 1.5: our heuristic: half as long again without a
    held-out gain
repetition: completions repeat themselves: degenerate text that the reward does not punish, or pays by length
  - add a repetition penalty to the reward
  - lower {lr}
  - raise {kl}
  - read the samples
  = our heuristic: over half of the 6-character pieces of a completion are repeats; prose stays below a third
entropy-collapse: the policy became nearly deterministic before the task was solved, so samples no longer differ
  - raise {clip_high} to 0.28 (no effect with one update per rollout)
  - lower {lr}
  - a small {entropy} (0.001)
  - prompts that are not yet settled
  = verl docs/algo/entropy.md: reward is about -a exp(entropy) + b, so a fall must buy score; limit a fifth: our
    heuristic: an e-fold and more
entropy-explosion: the policy drifts toward noise: entropy bonus too strong, updates too large, or tokens that the
    trainer thinks impossible
  - lower {entropy}
  - lower {lr}
  - raise {kl}
  - check sampler and trainer agree (sampler-mismatch)
  = verl docs/algo/entropy.md (sudden rise); limits 2 and 0.2 nats: our heuristic: doubled without a gain in score
reference-differs: the reference is not the initial policy: another checkpoint, adapters that are not off, dropout, or
    precision
  - load the reference from the same weights
  - compare both models' log-probs of one text
  = by construction: KL of a policy to itself is 0; limit 0.01 nats: our heuristic: bf16 rounding stays below it
kl-runaway: the policy leaves the reference faster than the score explains: over-optimised reward or updates too large
  - raise {kl}
  - lower {lr}
  - end at the checkpoint with the best held-out score
  = Gao 2022, scaling laws for reward over-optimisation; limit 0.3 nats a token: our heuristic: the circulating 0.5
    has no source either
ratio-first-update: with one update per rollout old and new policy are the same weights, so the ratio is 1: old
    log-probs come from elsewhere (sampler, other temperature, dropout, padding, precision)
  - run scripts/selfcheck.py
  - compute old log-probs with the trainer's own forward pass, dropout off
  = by construction; verl#2996, verl#6280 (micro-batch sizes that differ)
sampler-mismatch: sampler and trainer give the same tokens different probabilities: temperature or top-p applied on
    one side, stale weights, chat template, or precision
  - top-p 1 and top-k off
  - the same {temperature} on both sides
  - check that weights reach the sampler after every step
  - {mismatch}
  - the same precision on both sides
  = NeMo-RL docs/guides/grpo.md and adding-new-models.md (error factor 1.05, KL 0.001 to 0.01); verl
    docs/algo/rollout_corr.md (weights)
stale-sampler: the sampler keeps old weights, wholly or in part, while the trainer moves away from them: it trains on
    what the policy no longer says, and nothing that is learnt shows
  - compare the weights of both after a copy: --check_sync of our trainers names the tensors that differ
  - another version of vLLM, or the policy itself as sampler for some steps, to see whether the score moves
  = allenai/open-instruct#1473; five times the start, and 0.001 nats at least: our heuristic: kernels differ less
critic-useless: the critic predicts returns no better than a constant, and below 0 worse, so that advantages are
    noisier than without it: too few updates for each rollout, too little warm-up, a learning rate that is too low
    (stays near 0) or too high (far below 0), a value clip that is small beside the scores, or returns that depend on
    nothing it sees (prompts equally hard, answers wrong by chance)
  - more updates of the critic for each rollout: {critic_updates}
  - {critic_warmup}
  - change {critic_lr} (near 0: three times higher; far below 0: three to ten times lower)
  - where scores are well above 1: {value_clip}, or scores scaled to at most 1
  - a larger {batch}; prompts that are not all equally hard
  - or a method without a critic: {critic_free}
  = definition of explained variance: a constant has 0, and below 0 the error varies more than the returns; NeMo-RL
    docs/guides/ppo.md; benchmarks/README.md, the demo's critic; limit 0.03: our heuristic: it takes 1.5 % off the
    scatter of the returns
gradient-spikes: single batches with far larger gradients: rare tokens with extreme ratios, very long completions, few
    scores that differ
  - keep {grad_clip} at 1 or lower it
  - lower {lr}
  - a larger {batch}
  - look at the completions of these steps
  = our heuristic: ten times the median of the 20 steps before, and above 1, the usual clip
lr-high: updates too large: the policy was pushed to where its samples no longer score
  - lower {lr} by 3 to 10 times
  - fewer updates per rollout: {reuse}
  - {target}
  - go back to a checkpoint
  = Spinning Up's PPO ends an update at KL 0.015; limits 0.1 nats and a clip fraction of 0.3: our heuristic: several
    times beyond it
score-collapse: the policy lost what it could do: updates too large, a reward that changed, or a mismatch that grew
  - lower {lr}
  - raise {kl}
  - go back to the best checkpoint
  - look at which figure moved first with --plot
  = our heuristic: below half of the best stretch of the run
lr-low: scores differ, yet the policy hardly moves: learning rate too low, or weights in bf16, which swallow updates
    smaller than 1/256 of a weight
  - raise {lr} by 3 to 10 times (LoRA: about 10 times that of full training)
  - keep trained weights in float32
  = TRL lora_without_regret.md; limits 1e-4 nats and 1 % of entropy: our heuristic: no change visible in samples
lr-zero: the learning rate is 0: a schedule that has ended, or too few total steps for its warm-up
  - set {lr}
  - check the schedule's total number of steps
  = definition
held-out-trains: the run learns these prompts by heart: what their held-out figure gains says nothing about others
  - hold prompts out: python scripts/data_loader.py FILE --split 0.1 --out train.jsonl
  - then begin anew from the first model with --data train.jsonl --eval_data train.eval.jsonl
  = definition of a held-out set
reward-hacking: the policy earns score without getting better at the task
  - read high-scoring completions
  - lower the weight of the part that rises, or make it pay only beside a right answer
  - raise {kl}
  - keep the checkpoint with the best held-out figure
  = Gao 2022, scaling laws for reward over-optimisation; definition
format-only: the format is learnt and full; the answers are not getting better
  - lower the format's weight, or pay it only beside a right answer
  - easier prompts or a stronger start, so that right answers occur
  - {group} larger, so that they occur in a group
  = open-r1#255, trl#3452; limits 0.9 and 10 steps: our heuristic: what can still be gained there is noise
memory-grows: something keeps what each step made: a metric with its graph, a reward function or an environment that
    remembers every completion, a cache without a bound
  - keep metrics as numbers (.item() or .detach())
  - look for lists and dicts that your reward function or environment only adds to
  - until it is found, stop and go on from a checkpoint: a new process starts low
  = our heuristic: a tenth, in six even stretches; what settles gains most at first
# notes
flat-reward: the score neither rises nor falls beyond its noise; the log cannot tell whether the policy learns nothing,
    or learns what this score does not show
  - read completions beside their scores of the first and the last steps
  - scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL says how often prompts are solved;
    near 0 or 1 nothing can be learnt from them
  - then raise {lr} by 3 to 10 times, or the batch, and compare held-out figures before and after
  = no trend by the test of this page
slow-tools: a step waits for tools: those of a batch run side by side, so it takes at least as long as a conversation
    waits on average
  - {tool_time}
  - a cheaper tool, or one whose work is done by other processes
  = our heuristic: three tenths of the time, as of rewards
loss-is-no-measure: at ratio 1 the surrogate's value is minus the mean advantage, about 0, while its gradient is not;
    a KL term lets it rise
  - nothing: watch reward, held-out score, length and entropy
  = trl#2703, trl#3452
slow-reward: scoring takes a large share of the step
  - make the reward async or cheaper, or run it in several processes
  = our heuristic: three tenths of the time
solved: the task is learnt
  - harder prompts, or stop here
  = definition
short-run: too few steps for trends, so nothing is said about them
  - look again after 10 steps or more
  = our heuristic: medians of fewer than 3 steps a side
partial-log: lines could not be read
  - look at the lines named
  = definition
"""
IF_CUT = "if completions are cut"  # advice that ends so is left out where the log shows that none are


def marked_texts(text: str) -> dict[str, dict[str, list[str]]]:
    """Entries of a text file: {name: {mark: texts}}; under "#" the heading above an entry, under "" its first text.

    A line begins `name: text`, further texts are indented by two with a mark (+, !, - or =), their next lines by four.
    """
    entries, heading, entry, texts = {}, "", {}, []
    for line in text.splitlines():
        if line.startswith("# "):
            heading = line[2:]
        elif line.startswith("    "):
            texts[-1] += f" {line.strip()}"
        elif line.startswith("  "):
            texts = entry.setdefault(line[2], [])
            texts.append(line[4:])
        else:
            name, _, text = line.partition(": ")
            texts = [text]
            entry = entries[name] = {"#": [heading], "": texts}
    return entries


# finding: (likely cause, what to change, source)
ADVICE = {name: (entry[""][0], entry["-"], entry["="][0]) for name, entry in marked_texts(ADVICE_TEXT).items()}
NOTES = {name for name, entry in marked_texts(ADVICE_TEXT).items() if entry["#"] == ["notes"]}


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


def repeats(text: str) -> float:
    """Share of the 6-character pieces of a text's first 1,000 characters that occurred before; 0 below 30."""
    text = text[:1000]
    pieces = [text[i : i + 6] for i in range(len(text) - 5)]
    return 1 - len(set(pieces)) / len(pieces) if len(text) >= 30 else 0.0


# ------------------------------------------------------------------------ logged run (src/parts/reading/logged_run.py)

SOLVED = 0.95
GAIN = 0.03  # of the held-out figure; the standard error of 256 answers at one half


@dataclass
class Finding:
    """One verdict; `metric` is the name in the log, `step` and `value` where it shows."""

    id: str
    severity: str
    metric: str
    step: int
    value: float
    saw: str
    cause: str
    change: list[str]
    source: str


@dataclass
class LoggedRun:
    """What a log holds: `series` under common names, `rows` as they stand in it.

    `settings` are what the checks want to know of `config`, the run's own settings.
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

    def values(self, name: str) -> list[float]:
        """The finite values of a series, by step."""
        found = self.series.get(name, {})
        return [found[step] for step in sorted(found)]

    def steps(self) -> list[int]:
        """Every training step of the log."""
        names = [name for name in self.series if name != "held_out"]
        return sorted({step for name in names for step in self.series[name]})

    def parts(self) -> dict[str, list[float]]:
        """The means of the reward functions, in the order of the log."""
        return {name[5:]: self.values(name) for name in self.series if name.startswith("part:")}

    def find(self, id: str, name: str, saw: str, step: int | None = None, note: bool = False) -> Finding:
        """A finding about a series; without a step, where it is half way from its start to its end, or the last one."""
        found = self.series.get(name) or {0: 0.0}
        step = onset(found) if step is None else step
        cause, change, source = ADVICE[id]
        words = SETTINGS[self.trainer] | {"reward": first_part(self)[0] if self.parts() else "NAME"}
        severity = "note" if note or id in NOTES else "finding"
        metric, value = self.names.get(name, name), found.get(step, 0.0)
        return Finding(id, severity, metric, step, value, saw, cause, [c.format(**words) for c in change], source)


class UnreadableError(Exception):
    """The input is no log that can be judged."""


def late(run: LoggedRun, name: str) -> float:
    """Median of the last stretch of a series."""
    return ends(run.values(name))[1]


def span(run: LoggedRun, name: str) -> str:
    """The last stretch as text: steps 31-40."""
    steps = sorted(run.series[name])
    return f"steps {steps[-min(len(steps), window(len(steps)))]}-{steps[-1]}"


def first_part(run: LoggedRun) -> tuple[str, list[float]]:
    """Name and means of the reward that stands for correctness: named so, else the first; the score without parts."""
    parts = run.parts()
    for name in parts:
        if re.search(r"correct|acc|answer|exact|math|solv", name, re.IGNORECASE) and not is_format(name):
            return name, parts[name]
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


def gained(run: LoggedRun) -> bool:
    """Whether the held-out figure rose, or without one the correctness reward, or without parts the score."""
    held_out = run.values("held_out")
    if len(held_out) >= 2:
        return held_out[-1] - held_out[0] > GAIN and held_out[-1] > max(held_out) - 2 * GAIN
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
    found = sorted(run.series["score"].items())
    if len(scores) < 2 * TREND_STEPS and last > 0.1 * best:
        return None
    top = max(found, key=lambda pair: pair[1])[0]
    return best, last, next((step for step, v in found if step > top and v < (best + last) / 2), found[-1][0])


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


# -------------------------------------------------------------------- run settings (src/parts/reading/run_settings.py)

# what multiplies the updates of a batch in a page, and under which names a page of one's own has it
REPEATS = ("minibatches", "epochs", "ppo_epochs", "updates", "iterations", "num_iterations")


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


def verl_settings(flat: dict) -> dict:
    """What the checks want to know of verl's settings by their dotted names."""
    if not flat:
        return {}
    batch, mini = flat.get("data.train_batch_size"), flat.get(f"{ACTOR}.ppo_mini_batch_size")
    epochs, estimator = flat.get(f"{ACTOR}.ppo_epochs", 1), flat.get("algorithm.adv_estimator")
    bypass = flat.get("algorithm.rollout_correction.bypass_mode")
    warmup = flat.get("trainer.critic_warmup")
    settings = {
        "group_size": flat.get("actor_rollout_ref.rollout.n"),
        "temperature": flat.get("actor_rollout_ref.rollout.temperature"),
        "max_length": flat.get("data.max_response_length"),
        "updates": None if bypass or not batch or not mini else epochs * max(1, batch // mini),
        "grouped": estimator in ("grpo", "rloo", "grpo_passk", "gpg", "rloo_vectorized"),
    }
    return settings | ({"critic_warmup": warmup} if warmup else {})


def our_settings(config: dict) -> tuple[str, dict]:
    """(trainer, what the checks want to know) of a config.json; `trainer` is "" where it does not say."""
    settings = {"temperature": config.get("temperature"), "fp16": config.get("precision") == "fp16"}
    if "num_generations" in config:
        per_rollout = config.get("steps_per_generation", 0)
        one = config.get("num_iterations", 1) == 1 and not config.get("generation_batch_size")
        one = one and per_rollout in (0, config.get("gradient_accumulation_steps", 0))
        settings |= {"group_size": config["num_generations"], "max_length": config.get("max_completion_length")}
        return "grpo_train", settings | {"updates": 1 if one else None, "grouped": True}
    if "ppo_epochs" not in config:
        return "", {}
    advantage = config.get("advantage") or config.get("algorithm") or "gae"
    grouped = advantage not in ("gae", "ppo", "remax", "reinforce_pp")
    return "ppo_train", settings | {
        "group_size": config.get("group_size"),
        "max_length": config.get("max_new_tokens"),
        "updates": config["ppo_epochs"] * config.get("minibatches", 1),
        # a distillation's rewards may be measured only
        "grouped": bool(config.get("reward_coef")) if "teacher" in config else grouped,
        "critic_warmup": config.get("critic_warmup_steps", 0),
        "value_clip": config.get("value_clip", 0),
        "exact": config.get("precision") == "fp32" and config.get("rollout_engine") == "hf",
        "tools": bool(config.get("tool_format")),  # refused where an environment has none
    }


def page_settings(given: dict) -> dict:
    """What the checks want to know of a one-page trainer's settings.json."""
    return {
        "group_size": given.get("group_size"),
        "max_length": given.get("max_new_tokens"),
        "temperature": given.get("temperature"),
        "grouped": "group_size" in given,
        "updates": math.prod(given.get(name) or 1 for name in REPEATS),
        "critic_warmup": given.get("critic_warmup_steps", 0),
        "value_clip": given.get("value_clip", 0),
    }


# ---------------------------------------------------------------------- log reading (src/parts/reading/log_reading.py)

# what of its settings TRL's trainer_state.json has
TRL_STATE = ("max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps")


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
    part = re.fullmatch(PARTS[dialect], key)
    return f"part:{part[1]}" if part else None


def fill_series(run: LoggedRun, rows: list[dict], dialect: str) -> LoggedRun:
    """Put log rows into a run's series; a later value of a step wins, as a resumed run repeats steps."""
    run.rows = rows
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
        is_training = any(common_name(str(key), "trl") not in (None, "held_out") for key in row)
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
    run.remarks += remarks


def load_run(source: str, group_size: int = 0, columns: dict[str, str] | None = None) -> LoggedRun:
    """Read a run from a file or folder, with its settings (config.json, of a page settings.json) and samples.jsonl.

    Args:
        source: the file or folder.
        group_size: completions per prompt, where the log does not say.
        columns: names in this log of figures of FIGURES.
    """
    path, later = Path(source), []
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
    if group_size:
        run.settings["group_size"] = group_size
    seen = len(run.steps())
    need_log(
        seen or run.broken,
        f"got {path} ({run.format}) without a training metric that is known; expected a step of training, with "
        f"names such as {', '.join(list(NAMES[dialect_of(run)])[:3])}; try diagnose.py --columns reward=NAME",
    )
    return run


def dialect_of(run: LoggedRun) -> str:
    """Whose metric names a run's log has."""
    return run.trainer if run.trainer in ("trl", "verl") else "ours"


# -------------------------------------------------------------- reward findings (src/parts/reading/reward_findings.py)

RARELY = 0.01  # share of completions below which a length limit explains nothing
DATA_FILES = (("data", "eval_data"), ("data.train_files", "data.val_files"))  # settings of ours and of verl


def check_held_out(run: LoggedRun):
    """Held-out prompts that also train, as the run counted them or by the names of its files."""
    counts = [row for row in run.rows if as_number(row.get("eval/trained_rows"))]
    files = [(run.config.get(a), run.config.get(b)) for a, b in DATA_FILES]
    if counts:
        of = as_number(counts[0].get("eval/rows"))
        saw = f"{counts[0]['eval/trained_rows']:.0f}" + (f" of {of:.0f}" if of else "")
        saw += " evaluation prompts also occur in training; the accuracy is inflated"
        yield run.find("held-out-trains", "held_out", saw, step_of(counts[0]))
    elif run.values("held_out") and any(train and train == held_out for train, held_out in files):
        yield run.find("held-out-trains", "held_out", "the training file is the evaluation file too")


def check_sampling(run: LoggedRun):
    """A group of one; nearly greedy sampling, by the setting or by the entropy of the first steps."""
    words, entropy = SETTINGS[run.trainer], run.values("entropy")
    if run.settings.get("group_size") == 1 and run.settings.get("grouped"):
        yield run.find("group-size-1", "score", f"{words['group']} is 1 with an advantage that compares within groups")
    temperature = run.settings.get("temperature")
    if temperature is not None and temperature < 0.2:
        yield run.find("cold-sampling", "entropy", f"{words['temperature']} is {temperature}")
    elif temperature is None and entropy and ends(entropy)[0] < 0.01:
        saw = f"entropy of the first steps is {ends(entropy)[0]:.3g} nats a token"
        yield run.find("cold-sampling", "entropy", saw, min(run.series["entropy"]))


def check_constant(run: LoggedRun):
    """Every completion scores the same."""
    if not is_constant(run) or is_solved(run) or collapse(run):
        return
    saw = f"all completions of nearly every step scored the same, {late(run, 'score'):.4g} in {span(run, 'score')}"
    cut, gradients = run.values("truncated"), run.values("grad_norm")
    if cut and late(run, "truncated") > 0.2:
        saw += f"; {late(run, 'truncated'):.0%} of them were cut by the length limit"
    if cut and not any(cut):
        saw += "; none was cut"
    if gradients and not any(gradients):
        saw += (
            f". So advantages and gradients are 0 at each step: loss and learning rate{highest_rate(run)} are no cause"
        )
    finding = run.find("constant-reward", "score_std" if "score_std" in run.series else "score", saw)
    if cut and max(statistics.mean(cut), late(run, "truncated")) < RARELY:
        finding.change = [advice for advice in finding.change if not advice.endswith(IF_CUT)]
    yield finding


def highest_rate(run: LoggedRun) -> str:
    """The highest learning rate in brackets, where the log has one above 0."""
    highest = max(run.values("lr"), default=0)
    by_size = 0.0 in (run.config.get("lr"), run.config.get("learning_rate"))
    return (
        f" (it was up to {highest:.3g}{'; the 0 in the settings means by size' if by_size else ''})" if highest else ""
    )


def check_signal(run: LoggedRun):
    """Groups without spread, against the binomial forecast."""
    if is_constant(run):
        return
    if "zero_std" in run.series:
        name, share = "zero_std", late(run, "zero_std")
        saw = f"{share:.0%} of the groups in {span(run, 'zero_std')} score all alike"
    else:
        pairs = list(zip(run.values("advantage_max"), run.values("advantage_min"), strict=False))[-20:]
        name, share = "advantage_max", sum(high == low for high, low in pairs) / max(1, len(pairs))
        saw = f"in {share:.0%} of the last {len(pairs)} steps no completion had an advantage"
    if share < 0.8 or len(run.values(name)) < 3:
        return
    part, means = first_part(run)
    p, group = (ends(means)[1] if means else -1), run.settings.get("group_size")
    if group and 0 <= p <= 1:
        expected = forecast(p, group)
        saw += f"; p^G + (1-p)^G gives {expected:.0%} at pass rate {p:.3g} ({part}, taken as 0 or 1)"
        saw += f" and groups of {group}"
        enough = next((2**i for i in range(1, 9) if 2**i > group and forecast(p, 2**i) < 0.5), None)
        if share > expected + 0.15:
            saw += ": more than chance, so prompts are always or never solved, or samples hardly differ"
        elif enough:
            saw += f"; groups of {enough} would bring it to {forecast(p, enough):.0%}"
    yield run.find("solved" if is_solved(run) else "no-signal", name, saw)


def check_movement(run: LoggedRun):
    """Scores differ and nothing changes; or the score alone does not."""
    scores = run.values("score")
    if is_constant(run) and not run.series.keys() & {"score_std", "score_max"}:
        yield from check_constant(run)
    if len(scores) < 2 * TREND_STEPS or trend(scores) or is_solved(run) or is_constant(run):
        return
    if run.series.get("zero_std") and late(run, "zero_std") >= 0.8:
        return
    name, still = "", False
    if run.series.get("kl"):
        name, still = "kl", abs(late(run, "kl")) < 1e-4
    elif run.series.get("kl_step") and (run.settings.get("updates") or 1) > 1:  # else 0 by construction
        name, still = "kl_step", abs(statistics.median(run.values("kl_step"))) < 1e-7
    elif run.series.get("entropy"):
        first, last = ends(run.values("entropy"))
        name, still = "entropy", abs(last - first) < 0.01 * abs(first)
    saw = f"the score is flat over {len(scores)} steps"
    if still:
        yield run.find("lr-low", name, f"{saw} and {run.names[name]} is {late(run, name):.3g}")
    elif not run.values("held_out") and ends(scores)[1] < SOLVED:
        first, last = ends(scores)
        yield run.find("flat-reward", "score", f"{saw}, {first:.3g} at the start and {last:.3g} at the end")


def check_hacking(run: LoggedRun):
    """Score up, the task not."""
    if trend(run.values("score")) <= 0:
        return
    first, last = ends(run.values("score"))
    held_out, (name, part) = run.values("held_out"), first_part(run)
    saw = f"the score rose from {first:.3g} to {last:.3g}"
    if len(held_out) >= 2:
        peak = max(held_out)
        if not gained(run) and peak < SOLVED:
            saw += f", the held-out figure went from {held_out[0]:.3g} to {held_out[-1]:.3g} (best {peak:.3g})"
            best_step = max(run.series["held_out"], key=run.series["held_out"].get)
            yield run.find("reward-hacking", "held_out", saw, best_step)
        return
    rising = [other for other, values in run.parts().items() if other != name and trend(values) > 0]
    falls, stands = trend(part) < 0, is_flat(part) and not all(map(is_format, rising))
    if rising and ends(part)[0] < SOLVED and (falls or stands):
        saw += f" by {', '.join(rising)}, while {name} went from {ends(part)[0]:.3g} to {ends(part)[1]:.3g}"
        yield run.find("reward-hacking", f"part:{name}", saw)


def check_format(run: LoggedRun):
    """The format is full, the answers stand still."""
    name, part = first_part(run)
    if not is_flat(part) or ends(part)[1] >= 0.9 or gained(run):
        return
    for other, values in run.parts().items():
        if other == name or not is_format(other) or not values:
            continue
        top = max(max(values), 1.0 if max(values) > 0.5 else 0.05)  # parts may be logged with their weight
        if ends(values)[1] >= 0.9 * top:
            saw = f"{other} is at {ends(values)[1]:.3g} in {span(run, f'part:{other}')}"
            yield run.find("format-only", f"part:{other}", f"{saw}, {name} stands at {ends(part)[1]:.3g}")
            return


# ------------------------------------------------------ completion findings (src/parts/reading/completion_findings.py)

TEXTS = 8  # completions of a step that are looked at for repetition: as many as the trainers log


def mean_of_the_last(run: LoggedRun) -> tuple[str, float]:
    """Name and late mean of the score for correctness, which is a share where scores end at 1; 0 where they do not."""
    part, means = first_part(run)
    highest = [as_number(row.get("score")) or 0.0 for row in run.samples] + run.values("score_max") + means
    return part, ends(means)[1] if means and max(highest) <= 1 else 0.0


def check_truncation(run: LoggedRun):
    """Completions that the length limit cuts, and those that are paid all the same."""
    cut = run.values("truncated")
    if len(cut) < 3 or ends(cut)[1] < 0.2:
        return
    (first, last), (part, mean) = ends(cut), mean_of_the_last(run)
    saw = f"{last:.0%} of the completions in {span(run, 'truncated')} hit the length limit ({first:.0%} at the start)"
    if mean + last - 1 > 0.5 * min(mean, last):
        saw += f"; {part} is {mean:.3g} there, so at least {mean + last - 1:.0%} were cut and paid"
        yield run.find("paid-unfinished", "truncated", saw)
    else:
        yield run.find("truncation", "truncated", saw)


def check_conversations(run: LoggedRun):
    """Tools that are not called or mostly fail, and conversations that a limit ends."""
    calls, failures = run.values("tool_calls"), run.values("tool_failures")
    # where nothing was called and nothing took a moment, nothing replied either: then there are tools
    tools = run.settings.get("tools") or not any(run.values("tool_seconds"))
    if len(calls) >= 3 and not any(calls) and tools:
        yield run.find("no-tool-calls", "tool_calls", f"not one tool call in {len(calls)} steps")
    if len(failures) >= 3 and late(run, "tool_failures") >= 0.5 and (not calls or late(run, "tool_calls") > 0):
        saw = f"{late(run, 'tool_failures'):.0%} of the tool calls in {span(run, 'tool_failures')} came to an error"
        yield run.find("tool-failures", "tool_failures", saw)
    if len(run.values("limit")) >= 3 and late(run, "limit") >= 0.5:
        saw = f"{late(run, 'limit'):.0%} of the conversations in {span(run, 'limit')} were ended by a limit"
        if run.values("turns"):
            saw += f", after {late(run, 'turns'):.3g} answers"
        yield run.find("turn-limit", "limit", saw, note=is_solved(run))


def check_waiting(run: LoggedRun):
    """Tools or rewards that take much of a step."""
    medians = {name: statistics.median(run.values(f"time_{name}") or [0]) for name in ("step", "reward", "rollout")}
    tools, scoring, step = run.values("tool_seconds"), run.values("time_reward"), medians["step"]
    if len(tools) >= 3 and step and statistics.median(tools) > 0.3 * step:
        saw = f"a conversation waits {statistics.median(tools):.3g} s for its tools, in a step of {step:.3g} s"
        yield run.find("slow-tools", "tool_seconds", saw)
    whole = step or medians["reward"] + medians["rollout"]
    if len(scoring) >= 3 and whole and medians["reward"] > 0.3 * whole:
        saw = f"rewards take {medians['reward']:.3g} s of {whole:.3g} s"
        yield run.find("slow-reward", "time_reward", saw)


def check_repetition(run: LoggedRun):
    """Completions that repeat themselves, by samples.jsonl."""
    by_step: dict[int, list[str]] = {}
    for row in run.samples:
        text = row.get("completion")
        if row.get("kind", "train") == "train" and isinstance(text, str):
            by_step.setdefault(step_of(row), []).append(text)
    shares = {step: statistics.median(map(repeats, by_step[step][:TEXTS])) for step in sorted(by_step)}
    if shares and shares[max(shares)] > 0.5:
        run.series["repeats"], last = shares, max(shares)
        run.names["repeats"] = "samples.jsonl"
        saw = f"half of the completions of step {last} consist to {shares[last]:.0%} or more of repeated pieces"
        yield run.find("repetition", "repeats", saw)


# -------------------------------------------------------------- update findings (src/parts/reading/update_findings.py)

CRITIC_STEPS = 5  # the first ones are a critic's warm-up, whatever the settings say; its value head starts at 0
STRETCHES, STEPS_EACH = 6, 5  # of what is left of a run without its first tenth, in which memory still settles
GROWN, UNEVEN = 0.1, 1 / 3  # of the first stretch's memory; of the growth, which is 0.2 each where it is even
MISMATCH = (  # series, lowest and highest value that is fine, words
    ("gap_mean", -math.inf, math.log(1.05), "mean difference of log-probs {:.3g} nats; above log 1.05 = 0.049"),
    ("mismatch_kl", -math.inf, 0.01, "KL of sampler and trainer {:.3g} nats a token; above 0.01"),
    ("weight_mean", 0.5, 2, "mean importance weight {:.3g}; outside 0.5 to 2"),
    ("weight_ess", 0.3, math.inf, "effective sample size {:.3g} of the batch; below 0.3"),
    ("weight_std", -math.inf, 1, "standard deviation of the importance weights {:.3g}; above 1"),
    ("probs_correlation", 0.9, math.inf, "correlation of the two probabilities {:.3g}; below 0.9 (our heuristic)"),
)


def check_finite(run: LoggedRun):
    """NaN, infinities, and updates left out for them."""
    watched, dialect = ("loss", "grad_norm", "kl", "entropy", "value_loss", "score"), dialect_of(run)
    bad = [entry for entry in run.broken if common_name(entry[0], dialect) in watched]
    if bad:
        metric, step, value = bad[0]
        saw = f"{metric} is {value} at step {step}, {len(bad)} such values in all"
        run.names["broken"] = metric
        yield run.find("not-finite", "broken", saw, step)
    skipped = run.series.get("skipped", {})
    steps = [step for step, value in sorted(skipped.items()) if value]
    allowed = 0.2 * len(skipped) if run.settings.get("fp16") else 0  # fp16's loss scale settles that way
    if steps and len(steps) > allowed and not bad:
        saw = f"{len(steps)} steps left updates out because a gradient was not finite, first step {steps[0]}"
        yield run.find("not-finite", "skipped", saw, steps[0], note=len(steps) < 0.01 * len(skipped))


def check_ratio(run: LoggedRun):
    """The ratio of a rollout's only update."""
    updates, constant = run.series.get("updates", {}), run.settings.get("updates")
    for name, limit in (("ratio_max", 1 + 1e-3), ("clip_frac", 1e-3)):
        for step, value in sorted(run.series.get(name, {}).items()):
            if updates.get(step, constant) == 1 and value > limit:
                saw = f"{run.names[name]} is {value:.4g} at step {step}, which has one update per rollout"
                yield run.find("ratio-first-update", name, saw, step)
                return


def check_mismatch(run: LoggedRun):
    """Sampler and trainer disagree on the probability of sampled tokens."""
    gap = 0.01 if run.settings.get("exact") else 2.0  # fp32 with one sampler: rounding; else tokens may differ much
    largest = ("gap_max", -math.inf, gap, f"largest difference of a token {{:.3g}} nats; above {gap} (our heuristic)")
    for name, low, high, text in (*MISMATCH, largest):
        values = run.values(name)
        if values and not low <= statistics.median(values) <= high:
            first = next(step for step, value in sorted(run.series[name].items()) if not low <= value <= high)
            saw = text.format(statistics.median(values)) + f"; median of all steps, first at step {first}"
            yield run.find("sampler-mismatch", name, saw, first)
            return


def check_stale_sampler(run: LoggedRun):
    """The sampler's distance from the trainer grows while the score stands still: weights that do not arrive."""
    scores = run.values("score")
    if len(scores) < TREND_STEPS or trend(scores) > 0 or gained(run) or is_solved(run):
        return
    for name in ("mismatch_kl", "gap_mean"):
        values = [abs(value) for value in run.values(name)]
        first, last = ends(values) if values else (0.0, 0.0)
        if trend(values) > 0 and last > max(1e-3, 5 * first):
            saw = f"{run.names[name]} grew from {first:.2g} to {last:.2g} nats a token while the score did not rise"
            yield run.find("stale-sampler", name, saw)
            return


def check_kl(run: LoggedRun):
    """KL to the reference: 0 at step 1, and slow after that."""
    values, first = run.values("kl"), min(run.series["kl"])
    one_update = run.settings.get("updates") == 1 or dialect_of(run) == "ours" or run.format == "trainer_state.json"
    if first <= 1 and abs(values[0]) > 0.01 and one_update:
        saw = f"KL to the reference is {values[0]:.3g} nats a token at step {first}, before any update"
        yield run.find("reference-differs", "kl", saw, first)
    last = ends(values)[1]
    risen = trend(values) > 0 or (values[0] <= 0.01 and last > 1 and not collapse(run))  # that came at once
    if len(values) >= TREND_STEPS and last > 0.3 and risen and not (gained(run) and rises_late(run)):
        saw = f"KL to the reference is {last:.3g} nats a token in {span(run, 'kl')}, and correctness does not follow"
        yield run.find("kl-runaway", "kl", saw)


def check_critic(run: LoggedRun):
    """A critic that explains nothing after its warm-up, while scores differ; a note once the task is solved."""
    variances = run.series["explained_variance"]
    warmup = max(CRITIC_STEPS, int(as_number(run.settings.get("critic_warmup")) or 0))
    steps = [step for step in sorted(variances) if step > warmup]
    if len(variances) < TREND_STEPS or len(steps) < CRITIC_STEPS or is_constant(run) or hardly_varies(run):
        return
    steps = steps[-max(CRITIC_STEPS, len(steps) // 2) :]
    values = [variances[step] for step in steps]
    middle = statistics.median(values)  # single steps scatter by hundredths: of few of them, each counts
    if middle > 0 and (middle if len(values) >= TREND_STEPS else max(values)) > 0.03:
        return
    saw = f"explained variance {middle:.3g}, median of steps {steps[0]}-{steps[-1]}"
    lowest = min(variances, key=variances.get)
    if variances[lowest] < min(-0.1, 2 * middle):
        saw += f"; {variances[lowest]:.3g} at step {lowest}"
    clip, scores = as_number(run.settings.get("value_clip")), run.values("score")
    if clip and scores and max(map(abs, scores)) > 10 * clip:
        saw += f"; a rollout moves a value by {clip:g} at most, and scores reach {max(scores, key=abs):.3g}"
    if is_solved(run):
        saw += "; the task was solved all the same"
    yield run.find("critic-useless", "explained_variance", saw, steps[-1], note=is_solved(run))


def hardly_varies(run: LoggedRun) -> bool:
    """Whether scores hardly differ any more, so that nothing is left to explain: beside the start, or their size."""
    spread = run.values("score_std")
    if not spread:
        return False
    first, last = ends(spread)
    return last < 0.25 * first or last < 0.05 * abs(late(run, "score") if run.values("score") else 0.0)


def check_gradients(run: LoggedRun):
    """Gradients far above those of the steps before."""
    norms, spikes = sorted(run.series["grad_norm"].items()), []
    for i in range(5, len(norms)):
        before = statistics.median(value for _, value in norms[max(0, i - 20) : i])
        if norms[i][1] > 1 and norms[i][1] > 10 * before > 0.01:
            spikes.append((norms[i][1], norms[i][0], before))
    if spikes:
        value, step, before = max(spikes, key=lambda spike: spike[0])
        saw = f"{len(spikes)} spikes; the largest {value:.3g} at step {step} after a median of {before:.3g}"
        rare = len(spikes) < 0.02 * len(norms) and not collapse(run)
        yield run.find("gradient-spikes", "grad_norm", saw, step, note=rare)


def check_rate(run: LoggedRun):
    """Learning rate too high, too low, or 0."""
    rates = run.values("lr")
    if len(rates) >= 3 and max(rates[: len(rates) // 2 + 2]) == 0:
        yield run.find("lr-zero", "lr", "the learning rate is 0 in the first half of the run")
        return
    limits = (("kl_step", 0.1, "KL of one step's update"), ("clip_frac", 0.3, "clipped share of tokens"))
    too_high = False
    for name, limit, words in limits:
        values = run.series.get(name, {})
        high = [step for step, value in sorted(values.items()) if value > limit]
        if not too_high and len(high) >= 3 and len(high) >= 0.1 * len(values):
            too_high, step = True, max(high, key=values.get)
            saw = (
                f"{words} above {limit} in {len(high)} of {len(values)} steps, up to {values[step]:.3g} at step {step}"
            )
            yield run.find("lr-high", name, saw, step)
    lost = collapse(run)
    if not lost:
        return
    best, last, step = lost
    kl = run.series.get("kl", {})
    before = max((s for s in kl if s < step), default=None)
    if before is not None and kl.get(step, 0) - kl[before] > 0.5 and not too_high:
        saw = f"KL to the reference went from {kl[before]:.3g} to {kl[step]:.3g} nats a token in one step"
        yield run.find("lr-high", "kl", saw, step)
    saw = f"the score fell from {best:.3g} to {last:.3g}; half of it was lost by step {step}"
    yield run.find("score-collapse", "score", saw, step)


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


def check_memory(run: LoggedRun):
    """Memory that grows step by step although completions do not: of a GPU, or of the process."""
    if any(trend(run.values(name)) > 0 for name in ("length", "length_max", "turns")):
        return
    for name in ("gpu_memory", "memory"):
        growth = even_growth(run.values(name))
        if growth:
            saw = f"{run.names[name]} rose evenly from {growth[0]:.3g} to {growth[1]:.3g} GiB, completions did not grow"
            yield run.find("memory-grows", name, saw, max(run.series[name]))
            return


# ---------------------------------------------------------------------------- findings (src/parts/reading/findings.py)

TOO_SHORT, NOT_JUDGED = "too short to judge", "not judged"
LENGTHS = "mean length went from {:.4g} to {:.4g} tokens without a gain in correctness"
ENTROPIES = "entropy went from {:.3g} to {:.3g} nats a token "


def may_be_sharp(run: LoggedRun) -> bool:
    """Whether low entropy is no fault: the task is solved, the score rises, or a teacher is sharp."""
    taught = any("kl/teacher" in row for row in run.rows)
    return is_solved(run) or taught or trend(run.values("score")) > 0 or rises_late(run)


def gained_and_kept(run: LoggedRun) -> bool:
    """Whether correctness rose and the score did not collapse."""
    return gained(run) and not collapse(run)


MOVES = (  # finding, series, share of the first stretch beyond which the last lies, least distance, excuse, words
    ("length-runaway", "length", 1.5, 0.0, gained, LENGTHS),
    ("length-collapse", "length", 0.5, 0.0, gained, LENGTHS),
    ("entropy-collapse", "entropy", 0.2, 0.01, may_be_sharp, ENTROPIES + "and the score does not rise"),
    ("entropy-explosion", "entropy", 2.0, 0.2, gained_and_kept, ENTROPIES + "without a gain in correctness"),
)


def check_moves(run: LoggedRun, series: str):
    """Length or entropy that moves far, without what excuses it."""
    values = run.values(series)
    way = trend(values)
    for id, name, share, least, excuse, words in MOVES:
        if name != series or way != (1 if share > 1 else -1):
            continue
        first, last = ends(values)
        if way * (last - share * first) > 0 and way * (last - first) > least and not excuse(run):
            yield run.find(id, name, words.format(first, last))


def check_length(run: LoggedRun):
    """Truncation, runaway and collapse of the completions."""
    yield from check_truncation(run)
    yield from check_moves(run, "length")


def check_entropy(run: LoggedRun):
    """Entropy that falls without buying score, or explodes."""
    yield from check_moves(run, "entropy")


def check_remarks(run: LoggedRun):
    """Notes: loss, solved, short, torn."""
    losses = run.values("loss")
    if len(losses) >= 3 and (trend(losses) > 0 or (abs(statistics.median(losses)) < 1e-3 and not is_constant(run))):
        saw = "the loss went from {:.3g} to {:.3g}: this is no fault".format(*ends(losses))
        yield run.find("loss-is-no-measure", "loss", saw)
    if is_solved(run) and not (run.series.get("zero_std") and late(run, "zero_std") >= 0.8):
        held_out, (part, means) = run.values("held_out"), first_part(run)
        saw = f"held-out {held_out[-1]:.3g}" if held_out else f"{part} at {ends(means)[1]:.3g}"
        yield run.find("solved", "held_out" if held_out else "score", saw)
    if len(run.steps()) < TREND_STEPS:
        yield run.find("short-run", "score", f"{len(run.steps())} steps: trends were not judged")
    for remark in run.remarks:
        if "line" in remark:
            yield run.find("partial-log", "score", remark)


# (check, one of these series is needed), in the order of the report
CHECKS = (
    (check_held_out, ()),
    (check_finite, ()),
    (check_ratio, ("ratio_max", "clip_frac")),
    (
        check_mismatch,
        ("gap_mean", "gap_max", "mismatch_kl", "weight_mean", "weight_ess", "weight_std", "probs_correlation"),
    ),
    (check_stale_sampler, ("mismatch_kl", "gap_mean", "gap_max")),
    (check_sampling, ()),
    (check_constant, ("score_std", "score_max")),
    (check_signal, ("zero_std", "advantage_max")),  # above what follows from it
    (check_rate, ("score",)),
    (check_length, ("length", "truncated")),
    (check_conversations, ()),
    (check_waiting, ()),
    (check_repetition, ()),
    (check_entropy, ("entropy",)),
    (check_kl, ("kl",)),
    (check_critic, ("explained_variance",)),
    (check_gradients, ("grad_norm",)),
    (check_movement, ("score",)),
    (check_hacking, ("held_out", "score")),
    (check_format, ("score",)),
    (check_memory, ("gpu_memory", "memory")),
    (check_remarks, ()),
)


def diagnose(run: LoggedRun) -> tuple[list[Finding], list[str]]:
    """Findings of a run, findings before notes, and the names of the checks for which the log has no figures."""
    findings, left_out = [], []
    for check, needs in CHECKS:
        if needs and not any(run.series.get(name) for name in needs):
            left_out.append(check.__name__.removeprefix("check_"))
        else:
            findings += check(run)
    lost = collapse(run) is not None  # after which scores are equal
    return sorted(findings, key=lambda f: (f.severity == "note", lost and f.id == "no-signal")), left_out


# what a run is judged by: its figure for --columns, the series that hold it, and names that may be it in other logs
MEASURES = {
    "reward": ("reward", ("score",), r"reward|score|return"),
    "completion length": ("length", ("length",), r"length|_len\b|tokens"),
    "accuracy": ("accuracy", ("held_out", "part:"), r"\bacc\b|accuracy|correct\b|correctness|solve|pass@|pass_rate"),
    "KL": ("kl", ("kl", "kl_step"), r"(?:\b|_)kl(?:\b|_)"),
}
SPREAD = "spread of the reward"
SPREAD_SERIES = ({"score_std"}, {"zero_std"}, {"score_max", "score_min"}, {"advantage_max", "advantage_min"})
SPREADS = {"ours": "reward/std", "trl": "reward_std", "verl": "critic/score/max and critic/score/min"}


def unknown_keys(run: LoggedRun) -> list[str]:
    """Names in the log of figures that have no known name."""
    keys = dict.fromkeys(str(key) for row in run.rows for key, value in row.items() if is_finite(value))
    dialect = dialect_of(run)
    return [key for key in keys if common_name(key, dialect) is None and not re.match("eval|val|time|step", key)]


def names_like(run: LoggedRun, measure: str) -> list[str]:
    """Names in the log that a measure may have there."""
    return [key for key in unknown_keys(run) if re.search(MEASURES[measure][2], key, re.IGNORECASE)]


def level_of_all_steps(run: LoggedRun) -> float | None:
    """The mean reward of four steps in five, where it is one number and the log has nothing of the scores' spread."""
    scores = [f"{score:.6g}" for score in run.values("score")]
    known = any(spread <= run.series.keys() for spread in SPREAD_SERIES)
    if len(scores) < TREND_STEPS or known or is_constant(run):
        return None
    level = statistics.mode(scores)
    return float(level) if scores.count(level) >= 0.8 * len(scores) else None


def unread_measures(run: LoggedRun) -> dict[str, str]:
    """What could not be judged, each with what the log has or lacks for it."""
    unread, keys = {}, dict.fromkeys(str(key) for row in run.rows for key in row)
    for measure, (_, series, _) in MEASURES.items():
        if any(name.startswith(series) for name in run.series) or (measure == "reward" and "kl/teacher" in keys):
            continue
        near = names_like(run, measure) if dialect_of(run) != "ours" else []
        if run.format == NAMED_COLUMNS:  # whose user has said what the log has
            if measure == "reward":
                unread[measure] = "reward (no column is named for it)"
        elif near or measure in ("reward", "completion length"):
            names = near or unknown_keys(run) or list(keys)
            unread[measure] = f"{measure} (the log has {', '.join(names[:8])}{', …' if len(names) > 8 else ''})"
    level = level_of_all_steps(run)
    if level is not None:
        saw = f"the mean reward is {level:.4g} at nearly every step, as if all completions scored the same"
        unread[SPREAD] = f"needs {SPREADS[dialect_of(run)]} ({saw})"
    return unread


def judgement(run: LoggedRun, findings: list[Finding], left_out: list[str]) -> dict:
    """A run's verdict as plain data; a log with a part that cannot be read is never healthy."""
    steps = run.steps() or [step for _, step, _ in run.broken]
    unread = unread_measures(run)
    if any(f.severity == "finding" for f in findings):
        verdict = "findings"
    elif any(f.id == "short-run" for f in findings):
        verdict = TOO_SHORT
    else:
        verdict = f"{NOT_JUDGED}: {'; '.join(unread.values())}" if unread else "healthy"
    facts = {"path": run.path, "format": run.format, "trainer": run.trainer, "steps": [min(steps), max(steps)]}
    facts |= {"verdict": verdict, "findings": [asdict(f) for f in findings]}
    return facts | {"not_judged": [*unread, *left_out]}


# ---------------------------------------------------------------- metric groups (src/programs/report/metric_groups.py)

GLOSSARY_TEXT = """\
# Reward
reward/mean: mean score of the step's completions: the weighted sum of the reward functions, before the end-token
    penalty and KL; in units of the reward
  + rises
  ! flat: read samples.jsonl; if no completion ever scores, there is nothing to reinforce
reward/std: standard deviation of those scores
  + above 0
  ! 0: all completions scored the same, so only the KL term teaches
reward/zero_std_frac: with groups: share of those sampled, replaced ones included, whose completions all score the
    same before penalties and KL (gdpo: in every reward), so that comparing them teaches nothing; they cost no pass
    through the network where they cannot change the gradient
  + well below 1
  ! near 1: the prompts are too hard or too easy, the step is wasted; other prompts, a larger group_size, or a finer
    reward. At pass rate p and group size G, p^G + (1 − p)^G is to be expected. TRL's own frac_reward_zero_std reads
    lower: rounding hides equal scores from it
reward/<function>: unweighted mean of one reward function over the completions where it is not None; absent where it
    is None for all
  + rises
  ! one rises while another falls: weigh them anew
# KL
kl/ref: KL(policy ‖ reference), nats per response token, by kl_estimator (k3_ratio: k3) on the step's own samples; k1
    may dip below 0
  + 0 at step 1, then grows slowly
  ! not 0 at step 1: the reference is not the initial policy; a jump: the policy leaves the reference faster than
    reward explains
kl/ref_completion: the same, summed over a completion: nats per completion, the unit of kl_target
  + near kl_target where one is set
  ! far above the target for long: a higher kl_coef
kl/coef: the kl_coef this step used; changes only with kl_target
  + settles
  ! grows without end: the target is out of reach
kl/teacher: distillation: KL(student ‖ teacher), nats per sampled token: over the vocabulary, or by k1 with
    policy_gradient and servers
  + falls
  ! rises: a lower lr
kl/approx: KL(policy before the step ‖ policy during it), nats per response token, by k3; mean over the step's
    updates, each measured just before it is applied
  + small; 0 with one update per step
  ! rising over steps: a lower lr or fewer ppo_epochs; target_kl ends such a step
# Policy
policy/loss: the loss with its KL term, summed as aggregation says, without entropy bonus, mean over updates
  + its size means nothing: at ratio 1 PPO's is minus the mean advantage, and whitening makes that 0
  ! not finite
policy/clip_frac: share of trained tokens at which a bound of the loss changed it (clip_cov, kl_cov: share that was
    chosen)
  + 0 with one update per step, which is no fault; a few per cent else
  ! near 1: updates far too large
policy/entropy: entropy of the sampling distribution (after temperature), nats per token of the rows that train;
    without a critic these are the groups of unequal score
  + changes slowly
  ! sudden rise or collapse
policy/teacher_entropy: distillation: entropy of the teacher on the student's tokens, nats per token
  + near policy/entropy late in the run
  ! student's far below: mode seeking; objective forward_kl or jsd
policy/lost_mass: distillation, only where the student has more rows than its tokenizer has tokens: its probability on
    these rows; they are left out of sampling and loss here
  + below 1e-3
  ! high: other samplers may draw tokens without text; drop the rows with resize_token_embeddings
policy/overlap: distillation: share of the student's 8 likeliest tokens that are among the teacher's 8, at some 256
    tokens of each piece
  + high, or rising
  ! low and flat: templates differ, or fine-tune on the teacher's texts first
policy/ratio_max: largest ratio of new to old probability of any response token in the step
  + exactly 1 with one update per step; above 1 else, for rare tokens well above
  ! far from 1 at a step's first update: a bug, scripts/selfcheck.py finds it; TRL warns at 2.0 or 0.1 for the mean
    ratio
# Sampler and trainer
mismatch/weight_mean: mean of w, before any bound, over the tokens of rows that can change the gradient
  + 1 up to rounding with rollout_engine hf; 0.5 to 2 else
  ! outside: sampler and trainer do not agree; precision, template or stale weights
mismatch/kl: KL(sampler ‖ trainer), nats per trained token, by k3
  + below 1e-3
  ! above 0.01, or high at step 1: a bug in template, temperature or precision
mismatch/cut_frac: share of trained tokens whose w was cut or set to 0 by mismatch; 0 where nothing is corrected
  + a few per cent at most
  ! rising: the engines drift apart; seq_mask with long completions drops many, as its w is a product over tokens
# Value
value/loss: half the clipped squared error of the value against the return, per response token, in units of reward
    squared
  + falls, then follows the spread of returns
  ! grows while reward stands: a lower critic_lr
value/explained_variance: 1 − Var[return − value] / Var[return] over response tokens, with the values from before the
    update
  + 0 at step 1 (the value head starts at 0), then toward 1
  ! near 0 or below it after the first steps: the critic is no better than a constant; more minibatches,
    critic_warmup_steps, another critic_lr. Near 0 is no fault once nearly all completions score alike, or where they
    are wrong by chance
# Rollout
rollout/length_mean: sampled tokens per completion, end token included; of a conversation those of all its answers,
    without tools' results and replies
  + moves slowly
  ! runs to max_new_tokens, or collapses to a few tokens: read samples.jsonl
rollout/truncated_frac: share of completions that hit max_new_tokens without an end token; of conversations with such
    an answer
  + low
  ! rising: a higher max_new_tokens or missing_eos_penalty
rollout/turns_mean: with an environment: answers per conversation
  + as many as the task needs
  ! 1 from the start: no call is read, or the first answer ends it; always max_turns: see rollout/limit_frac
rollout/limit_frac: with an environment: share of conversations that ended at max_turns or max_conversation_tokens,
    not by an answer or a reply
  + low
  ! rising: a higher limit, or an environment that ends sooner
rollout/samples: GRPO, and others with dynamic_sampling: completions sampled in this step, those of replaced groups
    included
  + near batch_size; with GRPO the completions of a rollout
  ! batch_size × (1 + max_refills): too few groups differ
rollout/rounds: with dynamic_sampling: rounds in which they were sampled
  + 1 or 2
  ! 1 + max_refills: a higher max_oversampling, or other prompts
rollout/unused: with dynamic_sampling: those of groups that differ, but that the batch had no place for
  + 0 without max_oversampling, else small beside batch_size
  ! a large share: a lower max_oversampling
rollout/tokens_per_s: sampled tokens of all processes per second of sampling
  + steady
  ! falls: longer completions, or a busy machine
rollout/logprob_gap_max: largest difference between the sampler's and the trainer's log-prob of a token, nats; absent
    where a step has one update and no reference
  + rounding: below 1e-4 in fp32; with NeMo-RL's limit of 1.02 for the mean probability ratio, 0.02 on average in bf16
  ! large at step 1: template, temperature or precision differ between sampler and trainer; NeMo-RL warns at 1.05
# Prompts
prompts/seen_frac: share of prompts that have been sampled
  + rises to 1
prompts/below_frac: share with a running pass rate below LOW
  + falls
  ! near 1: no prompt gets full marks; scripts/warm_start.py, or a first reward that pays 1 for a right answer
prompts/within_frac: share from LOW to HIGH: those that are drawn at each of their turns, beside unseen ones
  + the larger, the more the data teach
  ! near 0 with all seen: nothing is left to learn here, or nothing can be
prompts/above_frac: share above HIGH
  + rises
  ! near 1: harder prompts
# Tools
tool/calls_mean: tool calls per conversation, those that cannot be read or made included
  + leaves 0 where tools help
  ! 0: the model does not know the form of calls; read pieces in samples.jsonl
tool/failure_frac: share of calls that came to an error: not readable, no such tool, raised, or no answer in
    tool_timeout
  + falls
  ! stays near 1: another tool_format, or a broken tool
tool/seconds: seconds in tools and replies per conversation; those of a batch run side by side, so a step waits less
    than the sum
  + small beside time/rollout
  ! near tool_timeout: a tool hangs
# Optimization
optim/lr: learning rate of the policy in this step
  + follows lr_schedule
optim/grad_norm: L2 norm of the policy's gradient before clipping, mean over updates; 0 during critic warm-up
  + steady
  ! always far above max_grad_norm: every update is clipped, a lower lr
optim/critic_grad_norm: the same of the critic
  + steady
  ! as above, with critic_lr
optim/updates: optimizer updates applied in this step
  + ppo_epochs × minibatches
  ! fewer: target_kl ended the step, or some were skipped
optim/skipped_updates: updates of this step left out because a gradient was not finite
  + 0; in fp16 now and then, while the loss scale settles
  ! several in a row: max_bad_updates of them end the run
# Time
time/rollout: seconds of sampling
  + the largest of the three with a real model: about 80 % of RL time is generation
time/step: GRPO: seconds of the optimizer step, sampling and rewards of its rollout included (TRL's step_time)
  + steady
time/teacher: distillation: seconds of asking server teachers
  + small beside time/rollout
  ! the server is the bottleneck
time/reward: seconds in the reward functions, after sampling: those that score_while_sampling hides are not counted
  + small
  ! beside time/rollout: make the functions async, or cheaper
time/update: seconds for old and reference log-probs, values, and all updates
  + steady
# Memory
memory/gpu_peak_gib: the most that PyTorch's tensors took of a GPU during the step (without the evaluation that
    follows it), cached blocks not counted; vLLM's share of the GPU is partly outside of it
  + steady; moves with the completions' lengths
  ! rises in even steps while lengths do not: something keeps tensors, such as a metric with its graph
memory/process_gib: resident memory of the process at the end of the step, on Linux
  + rises over the first steps, then steady
  ! rises in even steps: a reward function or an environment that keeps what it saw
# Held-out evaluation
eval/accuracy: share of rows with full marks, 1 or more, from the first reward function; from an environment's
    get_reward where it has one
  + rises with reward/mean
  ! reward/mean rises and this does not: the reward is gamed, or the training prompts are learnt by heart
eval/accuracy_low: lower end of its 95 % interval
  + above the upper end of before
  ! the intervals of before and after overlap: more held-out prompts, or a higher --eval_rows
eval/accuracy_high: upper end
eval/score: mean score, as reward/mean
  + rises
eval/rows: rows evaluated, which the interval of eval/accuracy comes from
  + several hundred
  ! few: 30 rows leave ± 0.17 around one half
eval/trained_rows: rows evaluated whose prompt also trains, in another case or spacing too; absent where there are
    none
  + absent
  ! present: the accuracy is inflated
eval/length_mean: tokens per completion, end token included
  + moves slowly
  ! as rollout/length_mean
eval/turns_mean: with an environment: answers per conversation
  ! as rollout/turns_mean
eval/calls_mean: with an environment: tool calls per conversation
  ! as tool/calls_mean
eval/<function>: unweighted mean of one reward function over the rows where it is not None
  + rises
eval/reverse_kl: distillation: KL(student ‖ teacher) per token on --eval_samples own samples of each held-out prompt
    (of the one-page trainer: one), the same draws each time; k3 with servers
  + falls
  ! flat while kl/teacher falls: too few prompts
eval/reverse_kl_low: distillation: lower end of its 95% interval over prompts, by bootstrap
eval/reverse_kl_high: distillation: upper end
  + below the lower end of before
  ! the intervals of before and after overlap: more held-out prompts, or --eval_samples
eval/reverse_kl_top: distillation: share of it that the largest completion carries, from 8 completions on
  + small
  ! above 1/3: the mean is about that one; --eval_samples 4
eval/entropy: distillation: entropy of the student there
  + changes slowly
  ! collapse
eval/teacher_entropy: distillation: entropy of the teacher there
eval/overlap: distillation: as policy/overlap, there
  + high, or rising
  ! low and flat
"""
LOOK_FIRST = "Look first"
# what to look at first, as references/metrics.md has it
FIRST = (
    *("eval/accuracy", "eval/reverse_kl", "eval/score", "reward/mean", "rollout/truncated_frac"),
    *("value/explained_variance", "policy/entropy", "kl/ref", "kl/teacher"),
)
OTHER = "Other metrics of the log"


def read_glossary() -> dict[str, dict]:
    """What each metric means: {key: {"group", "meaning", "healthy", "warning"}}, in the page's order."""
    parts = {"group": "#", "meaning": "", "healthy": "+", "warning": "!"}
    return {
        name: {part: entry.get(mark, [""])[0] for part, mark in parts.items()}
        for name, entry in marked_texts(GLOSSARY_TEXT).items()
    }


def our_name(key: str, dialect: str) -> str:
    """What metrics.jsonl calls a metric of another trainer's log; the key itself where it has no such name."""
    if dialect == "ours":
        return key
    common = common_name(key, dialect)
    if common == "held_out":
        return "eval/score" if dialect == "trl" else key
    if common and common.startswith("part:"):
        return f"reward/{common[5:]}"
    return next((ours for ours, name in OURS.items() if name == common), key) if common else key


def explained(key: str, glossary: dict[str, dict]) -> dict:
    """Group and meaning of a metric."""
    if key in glossary:
        return glossary[key]
    for prefix in ("reward", "eval"):
        if re.match(rf"{prefix}/(?!\w+/)", key):
            return glossary[f"{prefix}/<function>"]
    if key.startswith("val-"):
        return {"group": "Held-out evaluation", "meaning": "held-out figure of verl, by data source"}
    return {"group": "Time" if re.match(r"timing_|time/|perf/", key) else OTHER, "meaning": ""}


def groups_in_order(glossary: dict[str, dict]) -> list[str]:
    """The groups as the page shows them."""
    return [LOOK_FIRST, *dict.fromkeys(entry["group"] for entry in glossary.values()), OTHER]


# ---------------------------------------------------------------------------- sources (src/programs/report/sources.py)

LOGS = ("*.json", "*.jsonl", "*.log", "checkpoint-*/trainer_state.json")  # of a folder that is watched


@dataclass
class Source:
    """A run with its verdict, or an evaluation."""

    name: str
    folder: Path
    run: LoggedRun | None = None
    verdict: dict = field(default_factory=dict)
    report: dict | None = None  # results.json
    samples: list[dict] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def is_evaluation(path: Path) -> bool:
    """Whether a path names what evaluation.py wrote."""
    if path.is_dir():
        return (path / "results.json").is_file() and not (path / "metrics.jsonl").is_file()
    return path.name == "results.json"


def read_source(path: Path, name: str) -> Source:
    """Read a run or an evaluation.

    Raises:
        UnreadableError, UserError: it is neither.
    """
    folder = path if path.is_dir() else path.parent
    if not is_evaluation(path):
        run = load_run(str(path))
        return Source(name, folder, run, judgement(run, *diagnose(run)), samples=run.samples, remarks=run.remarks)
    source = Source(name, folder, report=read_report(str(path)))
    try:
        text = (folder / "samples.jsonl").read_text(encoding="utf-8", errors="replace")
        source.samples, bad, _ = rows_of_json(text)
        source.remarks += [f"samples.jsonl: {len(bad)} lines are no JSON; left out"] if bad else []
    except OSError:
        source.remarks.append("it has no samples.jsonl that can be read")
    return source


def short_names(paths: list[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    whole = [(path if path.is_dir() else path.parent / path.stem).resolve().parts for path in paths]
    whole = [parts[:-1] if len(parts) > 2 and parts[-1] in ("metrics", "results") else parts for parts in whole]
    for count in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-count:]) for parts in whole]
        if len({*names}) == len({*whole}):
            break
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, start=1)]


def read_sources(paths: list[Path]) -> tuple[list[Source], list[dict]]:
    """What can be read, and {"name", "error"} of what cannot."""
    found, failed = [], []
    for path, name in zip(paths, short_names(paths), strict=True):
        try:
            found.append(read_source(path, name))
        except (UnreadableError, UserError) as error:
            failed.append({"name": name, "error": str(error)})
    return found, failed


def last_changes(paths: list[Path]) -> list[tuple]:
    """Size and time of every log file, which tell whether there is something new."""
    files = []
    for path in paths:
        files += [file for pattern in LOGS for file in path.glob(pattern)] if path.is_dir() else [path]
    states = [file.stat() for file in files if file.is_file()]
    return [(state.st_size, state.st_mtime_ns) for state in states]


def json_beside(folder: Path, name: str) -> dict:
    """A JSON object in a run's folder; {} where there is none."""
    try:
        found = json.loads((folder / name).read_text(encoding="utf-8", errors="replace"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


# ------------------------------------------------------------------------ run facts (src/programs/report/run_facts.py)

CHEATING = ("reward-hacking", "format-only", "length-runaway", "length-collapse", "repetition")
TRAINED = "held-out-trains"
PLANNED = ("steps", "max_steps", "trainer.total_training_steps")  # ours, TRL's, verl's
SCRIPTS = {"ppo_train": "scripts/ppo_train.py", "grpo_train": "scripts/grpo_train.py"}


def points_of(run: LoggedRun, key: str) -> list[tuple[int, float]]:
    """(step, value) of a metric by its name in the log, finite ones; a later value of a step wins."""
    found = {}
    for row in run.rows:
        value = as_number(row.get(key))
        if value is not None and math.isfinite(value):
            found[step_of(row)] = value
    return sorted(found.items())


def held_out_facts(run: LoggedRun) -> dict | None:
    """The held-out figure before and after, its best step, and intervals where the log has what they need."""
    is_loss = not run.series.get("held_out") and bool(points_of(run, "eval/reverse_kl"))
    if is_loss:
        key, points = "eval/reverse_kl", points_of(run, "eval/reverse_kl")
        ends = [dict(points_of(run, f"{key}_{end}")) for end in ("low", "high")]
        intervals = {step: (ends[0][step], ends[1][step]) for step in ends[0] if step in ends[1]}
    else:
        key, points = run.names.get("held_out", ""), sorted(run.series.get("held_out", {}).items())
        rows = dict(points_of(run, "eval/rows")) if key == "eval/accuracy" else {}
        accuracies = [(step, value) for step, value in points if rows.get(step, 0) >= 1 and 0 <= value <= 1]
        intervals = {step: wilson_interval(value * rows[step], rows[step]) for step, value in accuracies}
    if not points:
        return None
    (first, before), (last, after) = points[0], points[-1]
    best_step, best = (min if is_loss else max)(points, key=lambda point: point[1])
    facts = {"key": key, "name": "held-out reverse KL" if is_loss else f"held-out {key.rpartition('/')[2]}"}
    facts |= {"before": before, "after": after, "first": first, "last": last, "best": best, "best_step": best_step}
    facts |= {"before_interval": intervals.get(first), "after_interval": intervals.get(last)}
    return facts | {"better": (after < before) if is_loss else (after > before), "several": len(points) > 1}


def learnt(facts: dict | None, run: LoggedRun, verdict: dict) -> str:
    """Whether it learnt, in a sentence."""
    if any(f["id"] == TRAINED for f in verdict["findings"]):
        return "Not measured: held-out prompts also train, so their figure rises by memory alone."
    if not facts:
        scores = run.values("score")
        if not scores:
            return "The log has neither held-out figures nor scores."
        return f"Not measured: no held-out prompts. The training score went from {scores[0]:.3g} to {scores[-1]:.3g}."
    if not facts["several"]:
        return "Not known yet: one held-out evaluation so far."
    a, b = facts["before_interval"], facts["after_interval"]
    if facts["before"] == facts["after"]:
        return "No: the held-out figure is what it was."
    if not (a and b):
        how = "better" if facts["better"] else "worse"
        return f"The held-out figure got {how}; the log does not say of how many rows, so there is no interval."
    if a[1] < b[0] or b[1] < a[0]:
        return f"{'Yes' if facts['better'] else 'It got worse'}: the 95 % intervals of before and after lie apart."
    return "Within the noise: the 95 % intervals of before and after overlap; more held-out rows would tell."


def cheats(facts: dict | None, verdict: dict) -> str:
    """Whether it earns reward without the task, in a sentence."""
    found = [f["id"] for f in verdict["findings"] if f["id"] in CHEATING and f["severity"] == "finding"]
    if any(f["id"] == TRAINED for f in verdict["findings"]):
        return "Cannot be told: held-out prompts also train, so nothing independent stands against the score."
    if found:
        return f"Perhaps: {', '.join(found)}, see below; read the samples that score high."
    if any(f["id"] == "short-run" for f in verdict["findings"]):
        return f"Too short to tell: trends are judged from {TREND_STEPS} steps on; read the samples that score high."
    if facts and facts["several"]:
        return "No sign of it: the checks that compare score, held-out figure, length and format found nothing."
    return "Cannot be told without held-out figures; read the samples that score high."


def outcome(run: LoggedRun, folder: Path, now: datetime.datetime) -> dict:
    """How far the run came, and why it ended there, as far as its files say."""
    steps = run.steps() or [b[1] for b in run.broken]
    planned = next((x for name in PLANNED if (x := as_number(run.config.get(name)))), None)
    of = f" of {planned:.0f}" if planned else ""
    log = Path(run.path)
    age = now.timestamp() - log.stat().st_mtime if log.is_file() else 0.0
    if json_beside(folder, "summary.json") or (planned and max(steps) >= planned):
        return {"done": True, "text": f"It ran to its end: step {max(steps)}{of}."}
    if run.trainer == "one_page" and json_beside(folder, "result.json"):
        return {"done": True, "text": f"It ended at step {max(steps)}{of}: its --minutes were over, or by Ctrl-C."}
    if run.broken and any(step >= max(steps) for _, step, _ in run.broken):
        return {"done": False, "text": f"It ends at step {max(steps)}{of} with values that are not finite."}
    if run.trainer in ("trl", "verl") or not planned:
        return {"done": False, "text": f"The log ends at step {max(steps)}{of}; it was last written {ago(age)}."}
    what = "it still runs" if age < 120 else "it runs no more, or a step takes long: it was stopped, or failed"
    return {"done": False, "text": f"Step {max(steps)}{of}, last written {ago(age)}; no summary.json: {what}."}


def ago(seconds: float) -> str:
    """A time span in words."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return "less than two minutes ago"


def spent(run: LoggedRun, folder: Path) -> dict:
    """Samples, sampled tokens and seconds of a run; None where the log does not say."""
    steps, config = len(run.steps()), run.config
    of_step = as_number(config.get("batch_size"))
    if run.trainer == "verl":
        whole = [as_number(config.get(key)) for key in ("data.train_batch_size", "actor_rollout_ref.rollout.n")]
        of_step = whole[0] * whole[1] if all(whole) else None
    if run.trainer == "one_page" and config.get("prompts"):
        of_step = (as_number(config["prompts"]) or 0) * (as_number(config.get("group_size")) or 1)
    logged = sorted({step_of(row) for row in run.rows})  # grpo_train.py may log every so many steps only
    since = {step: step - before for before, step in itertools.pairwise(logged)}
    sampled = [value * since.get(step, 1) for step, value in points_of(run, "rollout/samples")]
    samples = sum(sampled) if sampled else of_step * steps if of_step else None
    seconds = as_number(json_beside(folder, "summary.json").get("seconds"))
    if seconds is None:
        parts = [value for name in ("time/rollout", "time/reward", "time/update") for _, value in points_of(run, name)]
        whole = sorted(run.series.get("time_step", {}).items())  # means over the steps since the entry before
        ends = [0, *(step for step, _ in whole)]
        parts = [value * (step - ends[i]) for i, (step, value) in enumerate(whole)] or parts
        seconds = sum(parts) if parts else None
    speed, rollout = dict(points_of(run, "rollout/tokens_per_s")), dict(points_of(run, "time/rollout"))
    tokens = sum(speed[step] * rollout[step] for step in speed.keys() & rollout.keys())
    return {"steps": steps, "samples": samples, "seconds": seconds, "tokens": tokens or None}


def to_repeat(run: LoggedRun, folder: Path) -> str:
    """The command line that repeats a run; "" where the log does not have its settings."""
    if run.trainer == "one_page" and run.config:
        given = {k: v for k, v in run.config.items() if k not in ("out", "output_dir") and v not in (None, "")}
        pairs = (f"--{k} {shlex.quote(str(v))}" for k, v in given.items() if not isinstance(v, (bool, list, dict)))
        chat = " --no_chat" if run.config.get("chat") is False else ""
        return f"python templates/{page_of(run.config)} {' '.join(pairs)}{chat} --out NEW_FOLDER"
    if run.format != "metrics.jsonl" or not run.config:
        return ""
    script = "scripts/on_policy_distillation.py" if "teacher" in run.config else SCRIPTS.get(run.trainer)
    return f"python {script} --config {shlex.quote(str(folder / 'config.json'))} --output_dir NEW_FOLDER"


def trainer_name(run: LoggedRun) -> str:
    """Who trained it."""
    if run.trainer == "ppo_train" and "teacher" in run.config:
        return "on_policy_distillation"
    return {"one_page": "a page of templates/", "trl": "TRL"}.get(run.trainer, run.trainer)


def page_of(config: dict) -> str:
    """The page of templates/ that has such settings."""
    marks = {"teacher": "distillation.py", "environment": "multi_turn.py", "critic_lr": "ppo.py"}
    return next((page for name, page in marks.items() if name in config), "grpo.py")


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps at which a run's folder has a checkpoint."""
    found = [*folder.glob("checkpoints/step-*"), *folder.glob("checkpoint-*")]
    return sorted(int(m[1]) for path in found if (m := re.search(r"-(\d+)$", path.name)))


def about(config: dict) -> list[str]:
    """Model, algorithm and data by the settings that are known, each in a few words."""
    names = (
        ("model", ("model", "actor_rollout_ref.model.path")),
        ("algorithm", ("algorithm", "algorithm.adv_estimator", "loss_type")),
        ("data", ("data", "data.train_files")),
    )
    shown = [(kind, next((str(config[name]) for name in keys if config.get(name)), "")) for kind, keys in names]
    return [f"{kind} {'/'.join(Path(value).parts[-2:])}" for kind, value in shown if value]


def run_facts(source: Source, now: datetime.datetime) -> dict:
    """All that the top of the page says of a run."""
    run, folder = source.run, source.folder
    facts = held_out_facts(run)
    findings = source.verdict["findings"]
    return {
        "name": source.name,
        "trainer": trainer_name(run),
        "format": run.format,
        "about": about(run.config),
        "held_out": facts,
        "learnt": learnt(facts, run, source.verdict),
        "cheats": cheats(facts, source.verdict),
        "outcome": outcome(run, folder, now),
        "spent": spent(run, folder),
        "verdict": source.verdict["verdict"],
        "findings": sorted(findings, key=lambda f: f["severity"] != "finding"),
        "not_judged": source.verdict["not_judged"],
        "remarks": [*dict.fromkeys(source.remarks), *broken_remarks(run)],
        "versions": json_beside(folder, "versions.json"),
        "command": to_repeat(run, folder),
        "dialect": dialect_of(run),
    }


def broken_remarks(run: LoggedRun) -> list[str]:
    """What the log has of values that are not finite, a line each metric."""
    names = {name: [step for key, step, _ in run.broken if key == name] for name, _, _ in run.broken}
    return [
        f"{name} is not finite at {len(steps)} step{'s' * (len(steps) > 1)}, first at step {min(steps)}; left out"
        for name, steps in names.items()
    ]


# ---------------------------------------------------------------------- run curves (src/programs/report/run_curves.py)

POINTS = 2000  # of a curve; longer ones keep the lowest and the highest value of each stretch
PLACES = ("output_dir", "out", "resume", "report_to")  # where a run lies: no setting of it
LOGGED = (
    "save_every",
    "eval_every",
    "plot_every",
    "sample_every",
    "sample_tokens",
    "keep_checkpoints",
    "logging_steps",
)
OWN = ("seed", *PLACES, *LOGGED)  # what does not make another setting
HIDDEN = ("step", "epoch", "eval/rows", "training/global_step")


def series_of(run: LoggedRun) -> dict[str, dict]:
    """{name: {"as": its name in the log, "points": {step: value}, "bad": steps where it is not finite}}."""
    dialect, names, found = dialect_of(run), {}, {}
    for row in run.rows:
        step = step_of(row)
        for key, raw in row.items():
            value = None if key in HIDDEN else as_number(raw)
            if value is None:
                continue
            if key not in names:
                name = our_name(key, dialect)
                names[key] = key if name in found else name  # two of a log's metrics may have one common name
                found[names[key]] = {"as": key, "points": {}, "bad": []}
            entry = found[names[key]]
            if math.isfinite(value):
                entry["points"][step] = value
            else:
                entry["bad"].append(step)
    return found


def thinned(points: list[tuple[int, float]], most: int = POINTS) -> list[tuple[int, float]]:
    """At most `most` points: of each stretch the lowest and the highest, in their order."""
    if len(points) <= most:
        return points
    size, kept = math.ceil(2 * len(points) / most), []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def short(value: float) -> float:
    """A number with the digits that a curve shows."""
    return float(f"{value:.6g}")


def settings_numbers(sources: list[Source]) -> list[int]:
    """A number for each run: the same where they differ in their seed only."""
    known, numbers = {}, []
    for i, source in enumerate(sources):
        config = {k: v for k, v in source.run.config.items() if k not in OWN}
        whole = bool(config) and source.run.trainer != "trl"  # whose trainer_state.json has few of them
        text = json.dumps([source.run.trainer, config], sort_keys=True, default=str) if whole else f"alone {i}"
        numbers.append(known.setdefault(text, len(known)))
    return numbers


def curves_of(sources: list[Source]) -> dict:
    """What the page's script draws: runs, and metrics with their series."""
    glossary, runs, metrics = read_glossary(), [], {}
    for i, (source, setting) in enumerate(zip(sources, settings_numbers(sources), strict=True)):
        series = series_of(source.run)
        evaluated = {step for name, entry in series.items() if name.startswith("eval/") for step in entry["points"]}
        marks = [
            {"id": f["id"], "step": f["step"], "metric": our_name(f["metric"], dialect_of(source.run))}
            for f in source.verdict["findings"]
            if f["severity"] == "finding"
        ]
        run = {"name": source.name, "setting": setting}
        run |= {"checkpoints": checkpoint_steps(source.folder), "evaluations": sorted(evaluated), "findings": marks}
        runs.append(run)
        for name, entry in series.items():
            points = thinned(sorted(entry["points"].items()))
            metric = metrics.setdefault(name, {"name": name, **explained(name, glossary), "series": []})
            drawn = {"run": i, "as": entry["as"], "bad": sorted(entry["bad"]), "of": len(entry["points"])}
            metric["series"].append(drawn | {"x": [p[0] for p in points], "y": [short(p[1]) for p in points]})
    order = {group: i for i, group in enumerate(groups_in_order(glossary))}
    held_out = [source.run.names["held_out"] for source in sources if "held_out" in source.run.names]  # verl's own name
    first = {name: i for i, name in enumerate([*held_out, *FIRST])}
    place = {name: i for i, name in enumerate(glossary)}
    for metric in metrics.values():
        metric["group"] = LOOK_FIRST if metric["name"] in first else metric["group"]
    ordered = sorted(
        metrics.values(),
        key=lambda m: (order[m["group"]], first.get(m["name"], 0), place.get(m["name"], len(place)), m["name"]),
    )
    return {"runs": runs, "metrics": ordered, "groups": [g for g in order if any(m["group"] == g for m in ordered)]}


# -------------------------------------------------------------------- small curve (src/programs/report/small_curve.py)

WIDTH, HEIGHT, EDGE = 320, 96, 4


def path_of(points: list[tuple[int, float]], box: tuple[float, float, float, float]) -> str:
    """An SVG path through points; `box` is what they may span: lowest and highest step, lowest and highest value."""
    left, right, low, high = box
    corners = []
    for step, value in points:
        x = EDGE + (step - left) / max(right - left, 1) * (WIDTH - 2 * EDGE)
        y = HEIGHT - EDGE - (value - low) / max(high - low, 1e-12) * (HEIGHT - 2 * EDGE)
        corners.append(f"{x:.1f} {y:.1f}")
    return "M" + "L".join(corners)


def score_range(runs: list[LoggedRun]) -> tuple[float, float]:
    """Lowest and highest score of all runs, so that their drawings have one scale."""
    values = [value for run in runs for value in run.series.get("score", {}).values()]
    return min(values, default=0.0), max(values, default=1.0)


def small_curve(run: LoggedRun, scores: tuple[float, float]) -> dict | None:
    """Paths of the score, in the range of all runs, and of the held-out figure; None without either."""
    found = {name: sorted(run.series.get(name, {}).items()) for name in ("score", "held_out")}
    drawn = {name: thinned(points, 200) for name, points in found.items() if len(points) > 1}
    if not drawn:
        return None
    steps = [step for points in drawn.values() for step, _ in points]
    shares = all(0 <= value <= 1 for _, value in found["held_out"])
    paths, ends = {}, {}
    for name, points in drawn.items():
        values = [value for _, value in points]
        low, high = scores if name == "score" else (0.0, 1.0) if shares else (min(values), max(values))
        paths[name] = path_of(points, (min(steps), max(steps), low, high))
        ends[name] = (f"{values[0]:.3g}", f"{values[-1]:.3g}")
    return {"paths": paths, "ends": ends, "width": WIDTH, "height": HEIGHT, "steps": (min(steps), max(steps))}


# ---------------------------------------------------------------------- time table (src/programs/report/time_table.py)

PHASES = {  # of a step, by whose log it is; the names of those that do not hold one another
    "ours": r"time/(rollout|reward|update|teacher)$",
    "trl": r"(?!)",
    "verl": r"timing_s/(gen|reward|old_log_prob|ref|values|adv|update_\w+|testing|save_checkpoint)$",
}
WHOLE = {"ours": "time/step", "trl": "step_time", "verl": "timing_s/step"}
SPEED = r"rollout/tokens_per_s$|perf/throughput$"
MEMORY = r"(?i).*(memory|mem_gb).*"  # ours, verl's


def stretch_of(run: LoggedRun, key: str) -> tuple[float, float]:
    """Medians of a metric over the first and the last stretch of the run."""
    return ends([value for _, value in points_of(run, key)])


def thirds_of(run: LoggedRun, key: str) -> dict:
    """Medians of a metric over the first and the last third of the run, and by how much it grew between them."""
    values = [value for _, value in points_of(run, key)]
    size = max(1, len(values) // 3)
    first, last = statistics.median(values[:size]), statistics.median(values[-size:])
    return {"name": key, "first": first, "last": last, "grown": last / first - 1 if first > 0 else None}


def time_of(run: LoggedRun) -> dict:
    """Phases with their medians and shares, the whole step, tokens per second and memory; empty lists without them."""
    dialect = dialect_of(run)
    keys = list(dict.fromkeys(str(key) for row in run.rows for key, raw in row.items() if as_number(raw) is not None))
    keys = [key for key in keys if points_of(run, key)]
    phases = [(key, *stretch_of(run, key)) for key in keys if re.match(PHASES[dialect], key)]
    whole = next(((key, *stretch_of(run, key)) for key in keys if key == WHOLE[dialect]), None)
    seconds = max(whole[2] if whole else 0.0, sum(last for _, _, last in phases)) or 1.0
    if whole and phases and seconds > sum(last for _, _, last in phases) * 1.02:
        rest = [max(0.0, whole[i] - sum(phase[i] for phase in phases)) for i in (1, 2)]
        phases.append(("the rest", *rest))
    if whole and not phases:
        phases = [whole]
    rows = [
        {"name": name.rpartition("/")[2], "first": first, "last": last, "share": last / seconds}
        for name, first, last in sorted(phases, key=lambda phase: -phase[2])
    ]
    speeds = [(key, *stretch_of(run, key)) for key in keys if re.match(SPEED, key)]
    others = [{"name": key, "first": first, "last": last} for key, first, last in speeds]
    return {"phases": rows, "others": others, "memory": [thirds_of(run, key) for key in keys if re.match(MEMORY, key)]}


# -------------------------------------------------------- evaluation tables (src/programs/report/evaluation_tables.py)

DRAWS = 2000  # of the bootstrap, evaluation.py's default


def interval_text(metric: dict) -> str:
    """A metric's 95 % interval as text."""
    return "" if metric.get("ci95") is None else "{:.4g} to {:.4g}".format(*metric["ci95"])


def metric_row(task: str, name: str, metric: dict) -> dict:
    """A line of the table."""
    value = metric.get("value")
    count, of = metric.get("n"), metric.get("of")
    row = {"task": task, "metric": name, "value": "not applicable" if value is None else f"{value:.4g}"}
    return row | {"interval": interval_text(metric), "rows": str(count) if count == of else f"{count} of {of}"}


def evaluation_tables(sources: list[Source]) -> list[dict]:
    """Of each evaluation its table, and from the second on the paired tests against the first."""
    tables = []
    for source in sources:
        tasks = source.report["tasks"]
        rows = [metric_row(t, name, m) for t, result in tasks.items() for name, m in result["metrics"].items()]
        table = {"name": source.name, "rows": rows, "tests": [], "problem": "", "remarks": source.remarks}
        table["model"] = str((source.report.get("model") or {}).get("name", ""))
        table["definitions"] = {t: str(result.get("definition", "")) for t, result in tasks.items()}
        if source is not sources[0]:
            try:
                found = compare_reports(sources[0].report, source.report, DRAWS, 0)
                table["tests"] = [metric["verdict"] for metrics in found.values() for metric in metrics.values()]
            except UserError as error:
                table["problem"] = str(error)
        tables.append(table)
    return tables


# -------------------------------------------------------------------- sample rows (src/programs/report/sample_rows.py)

LONGEST = 100_000  # characters of a text that the page holds
DIGITS = 26  # of a float in JSON, with what stands between two of them
NAMED = ("step", "kind", "prompt", "completion", "score", "rewards", "finished")
OF_EVALUATIONS = ("task", "metrics")


def cut_text(value):
    """A value whose long text is cut, with a word about it."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[:LONGEST]}… [{len(value) - LONGEST} more characters]"
    if isinstance(value, list) and len(value) < LONGEST // DIGITS and {*map(type, value)} <= {int, float}:
        return value  # figures of tokens, the most of a large log
    text = json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= LONGEST else f"{text[:LONGEST]}… [{len(text) - LONGEST} more characters]"


def number_or_none(value):
    """A finite number with six digits, else None; a truth value is 0 or 1."""
    if type(value) is bool or (type(value) is int and abs(value) < 10**6):
        return int(value)
    return float(f"{float(value):.6g}") if is_finite(value) else None


def sample_row(run: int, row: dict) -> list:
    """[run, step, kind, score, finished, prompt, completion, rewards, others] of a line of samples.jsonl."""
    rewards = row.get("rewards", row.get("metrics"))
    rewards = {str(k): number_or_none(v) for k, v in rewards.items()} if isinstance(rewards, dict) else {}
    score = row["score"] if "score" in row else next(iter(rewards.values()), None)  # evaluation.py gives metrics only
    kind = row.get("kind", row.get("task", "train"))
    others = {k: cut_text(v) for k, v in row.items() if k not in (*NAMED, *OF_EVALUATIONS) and v is not None}
    step, finished = as_number(row.get("step")), row.get("finished", row.get("finish") not in ("length", "limit"))
    text = row.get("completion")
    return [
        *(run, int(step) if is_finite(step) else None, str(kind), number_or_none(score), int(bool(finished))),
        *(cut_text(row.get("prompt", "")), "" if text is None else cut_text(text), rewards, others),
    ]


def group_key(row: list) -> tuple:
    """What the samples of one group share."""
    return row[0], row[1], row[2], row[5] if isinstance(row[5], str) else json.dumps(row[5], default=str)


def all_rows(sources: list[Source]) -> list[list]:
    """The rows of all sources."""
    return [sample_row(run, row) for run, source in enumerate(sources) for row in source.samples]


def groups_of(rows: list[list]) -> tuple[list[int], set[int]]:
    """The number of each row's group, and the groups of every run's first and last held-out evaluation."""
    numbers, known, evaluated = [], {}, {}
    for row in rows:
        number = known.setdefault(hash(group_key(row)), len(known))
        numbers.append(number)
        if row[2] != "train" and row[1] is not None:
            evaluated.setdefault(row[0], {}).setdefault(row[1], set()).add(number)
    kept = set()
    for steps in evaluated.values():
        kept |= steps[min(steps)] | steps[max(steps)]
    return numbers, kept


# ---------------------------------------------------------------------------- packing (src/programs/report/packing.py)

PROBED, PROBED_BYTES = 2000, 4e6  # rows that tell how well all of them compress, fewer where they are long
GZIP = 16 + zlib.MAX_WBITS


def packed(parts: Iterable[bytes]) -> bytes:
    """Base64 of the gzip of bytes that come in parts."""
    squeeze = zlib.compressobj(6, zlib.DEFLATED, GZIP)
    return base64.b64encode(b"".join([*map(squeeze.compress, parts), squeeze.flush()]))


def packed_json(value) -> bytes:
    """Base64 of the gzip of a value's JSON."""
    return packed([json_text(value).encode()])


def without_nan(value):
    """A value whose numbers that are not finite, which JSON does not know, are text."""
    if isinstance(value, dict):
        return {key: without_nan(x) for key, x in value.items()}
    if isinstance(value, list):
        return [without_nan(x) for x in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def json_text(value) -> str:
    """A value as JSON that browsers read."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(without_nan(value), separators=(",", ":"))


def json_of_samples(rows: Iterable[list]) -> Iterable[bytes]:
    """The JSON {"rows": …, "prompts": …} of rows, in parts; a prompt stands in it once."""
    prompts, before = {}, b'{"rows":['
    for row in rows:
        prompt = row[5] if isinstance(row[5], str) else json_text(row[5])
        number = prompts.setdefault((type(row[5]), prompt), len(prompts))
        yield before + json_text([*row[:5], number, *row[6:]]).encode()
        before = b","
    texts = (json.dumps(prompt) if kind is str else prompt for kind, prompt in prompts)
    yield (b"" if before == b"," else before) + f'],"prompts":[{",".join(texts)}]}}'.encode()


def share_that_fits(rows: list[list], room: float) -> float:
    """The share of the rows that fills the room, from what every so many of them take."""
    few = rows[:: math.ceil(len(rows) / 50)]
    mean = sum(map(len, json_of_samples(few))) / len(few)
    some = rows[:: math.ceil(len(rows) / min(PROBED, max(50, PROBED_BYTES / mean)))]
    return min(1.0, room * len(some) / len(rows) / len(packed(json_of_samples(some))))


def packed_samples(sources: list[Source], room: float) -> tuple[bytes, int]:
    """The samples, thinned evenly to `room` bytes, and how many they are.

    Whole groups go, and those of the first and the last held-out evaluation stay.
    """
    rows = all_rows(sources)
    share = share_that_fits(rows, max(room, 1.0)) if rows else 1.0
    share = 1.0 if share > 0.8 else share  # rows that lie side by side compress better than some of them
    numbers, stay = groups_of(rows) if rows else ([], set())
    for _ in range(5):
        chosen = [r for r, n in zip(rows, numbers, strict=True) if n in stay or int((n + 1) * share) > int(n * share)]
        data = packed(json_of_samples(chosen))
        if len(data) <= room:
            break
        share *= min(0.9, 0.95 * max(room, 0.0) / len(data))
    return data, len(chosen)


# ---------------------------------------------------------------------------------- page (src/programs/report/page.py)

TEMPLATE = """\
<!doctype html>
<html lang="en">
<!-- a page of scripts/report.py -->
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'nonce-{{ nonce }}';
 style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{{ title }}</title>
<style>{{ style | safe }}</style>
</head>
<body{% if every %} data-every="{{ every }}"{% endif %}>
<a class="skip" href="#main">to the content</a>
<div class="bar"><h1 class="hide-small">{{ title }}</h1><nav aria-label="Sections">
{%- for id, name in sections %}<a href="#{{ id }}">{{ name }}</a>{% endfor %}</nav>
<span class="soft small hide-small">{{ written }}</span>
{%- if every %}<label class="small"><input type="checkbox" id="renew" checked> renew</label>{% endif %}
<button id="theme" type="button" title="light or dark" aria-label="light or dark" hidden>◐</button></div>
<main id="main">
{%- macro span(ends, form) %}{% if ends %} <small>({{ form % ends[0] }} to {{ form % ends[1] }})</small>{% endif %}
{%- endmacro %}
{%- macro count(value) %}{% if value is none %}–{% else %}{{ "{:,.0f}".format(value) }}{% endif %}
{%- endmacro %}
{%- macro seconds(value) %}{% if value is none %}–{% elif value < 600 %}{{ "%.3g" % value }} s
{%- elif value < 36000 %}{{ "%.0f" % (value / 60) }} min{% else %}{{ "%.1f" % (value / 3600) }} h{% endif %}
{%- endmacro %}
{%- macro dot(i) %}<i class="dot" style="background:var(--run{{ i % 8 }})"></i>{% endmacro %}
{%- macro badge(run) %}
{%- set bad = run.findings | selectattr("severity", "eq", "finding") | list %}
<span class="badge {{ 'bad' if bad else 'good' if run.verdict == 'healthy' else '' }}">
{%- if bad %}{{ bad | length }} finding{{ "s" if bad | length > 1 }}: {{ bad | join(", ", attribute="id") }}
{%- else %}{{ run.verdict }}{% endif %}</span>{% endmacro %}
{%- macro finding(f) %}<div class="finding {{ f.severity }}"><h4>{{ f.severity }}: {{ f.id }}
 <span class="soft small">{{ f.metric }}, step {{ f.step }}
{%- if f.id != "not-finite" %}, {{ "%.4g" % f.value }}{% endif %}</span></h4>
<p><b>Saw</b> {{ f.saw }}</p><p><b>Likely cause</b> {{ f.cause }}</p>
<p><b>Change</b></p><ul>{% for c in f.change %}<li>{{ c }}</li>{% endfor %}</ul>
<p class="soft small">Source: {{ f.source }}</p></div>{% endmacro %}
{%- for bad in failed %}<div class="box"><header><h3>{{ bad.name }}</h3><span class="badge bad">not readable
</span></header>
<p class="text">{{ bad.error }}</p></div>{% endfor %}
{%- if runs %}
<section id="runs">
{%- if runs | length > 1 %}
<h2>Runs</h2><div class="scroll box"><table id="overview"><tr><th>run</th><th>held out</th><th>verdict</th>
<th>best (step)</th><th class="number">steps</th><th class="number">samples</th>
<th class="number">time</th></tr>
{%- for run in runs %}<tr><td>{{ dot(loop.index0) }} {{ run.name }}</td>
{%- if run.held_out %}{% set h = run.held_out %}<td><span class="ends">{{ "%.3f" % h.before }}
{{- span(h.before_interval, "%.3f") }}</span>{% if h.several %} <span class="ends">→ {{ "%.3f" % h.after }}
{{- span(h.after_interval, "%.3f") }}</span>{% endif %}
{%- if h.name != "held-out accuracy" %} <span class="small soft">{{ h.name[9:] }}</span>{% endif %}</td>
{%- else %}<td class="soft">none</td>{% endif %}<td>{{ badge(run) }}
<div class="small soft">{{ run.outcome.text }}</div></td>
<td>{% if run.held_out and run.held_out.several %}{{ "%.3f" % run.held_out.best }} ({{ run.held_out.best_step }})
{%- endif %}</td>
<td class="number">{{ count(run.spent.steps) }}</td><td class="number">{{ count(run.spent.samples) }}</td>
<td class="number">{{ seconds(run.spent.seconds) }}</td></tr>{% endfor %}</table></div>
{%- if differing %}
<h2 id="differs">What differs in the settings</h2>
<div class="scroll box differing" tabindex="0"><table><tr><th>setting</th>
{%- for run in runs %}<th>{{ dot(loop.index0) }} {{ run.name }}</th>{% endfor %}</tr>
{%- for name, values in differing %}<tr><td><code>{{ name }}</code></td>
{%- for value in values %}<td class="value mono">{{ value }}</td>{% endfor %}</tr>{% endfor %}</table></div>
{%- elif runs | length > 1 and has_settings %}<p class="soft">The settings of these runs do not differ.</p>{% endif %}
{%- endif %}
<h2>{{ "Outcome" if runs | length == 1 else "Each run" }}</h2>
<div class="cards{{ ' one' if runs | length == 1 }}">
{%- for run in runs %}
<article class="box run"><header>{{ dot(loop.index0) }}<h3>{{ run.name }}</h3>{{ badge(run) }}
<span class="soft small">{{ run.trainer }} · {{ run.format }}
{%- for fact in run.about %} · {{ fact }}{% endfor %}</span></header>
<div>
{%- if run.held_out %}{% set h = run.held_out %}
<p class="soft">{{ h.name }}{% if h.several %}, step {{ h.first }} → {{ h.last }}{% endif %}</p>
<p class="big">{{ "%.3f" % h.before }}{{ span(h.before_interval, "%.3f") }}
{%- if h.several %} → {{ "%.3f" % h.after }}{{ span(h.after_interval, "%.3f") }}{% endif %}</p>
{%- endif %}
<dl class="asked"><dt>Did it learn?</dt><dd>{{ run.learnt }}</dd><dt>Is it cheating?</dt><dd>{{ run.cheats }}</dd>
<dt>Why did it stop?</dt><dd>{{ run.outcome.text }}</dd></dl>
</div><div>
{%- if run.small %}{% set s = run.small %}
<figure><svg class="small-curve" viewBox="0 0 {{ s.width }} {{ s.height }}" preserveAspectRatio="none" role="img"
 aria-label="score and held-out figure over the steps">
{%- for name, path in s.paths.items() %}<path class="{{ name }}" d="{{ path }}" fill="none" stroke-width="1.4"
 vector-effect="non-scaling-stroke"/>{% endfor %}</svg>
<figcaption class="small soft">training score from {{ '%.3g' % scores[0] }} to {{ '%.3g' % scores[1] }},
 steps {{ s.steps[0] }} to {{ s.steps[1] }}:
{%- for name, ends in s.ends.items() %} <span class="key-{{ name }}">━</span>
 {{ "held out" if name == "held_out" else "training score" }} {{ ends[0] }} → {{ ends[1] }}{% endfor %}
</figcaption></figure>
{%- endif %}
<div class="figures small">
{%- if run.held_out and run.held_out.several %}<span>best held out <b>{{ "%.3f" % run.held_out.best }}</b> at step
 <b>{{ run.held_out.best_step }}</b></span>{% endif %}
<span>samples <b>{{ count(run.spent.samples) }}</b></span>
{%- if run.spent.tokens %}<span>sampled tokens <b>{{ count(run.spent.tokens) }}</b></span>{% endif %}
<span>time <b>{{ seconds(run.spent.seconds) }}</b></span></div>
</div><div class="wide">
{%- if run.remarks %}<details open><summary>Left out of the log</summary><ul class="remarks small">
{%- for remark in run.remarks %}<li>{{ remark }}</li>{% endfor %}</ul></details>{% endif %}
{%- set bad = run.findings | selectattr("severity", "eq", "finding") | list %}
{%- set notes = run.findings | selectattr("severity", "ne", "finding") | list %}
{%- if bad %}<details{{ " open" if runs | length < 3 }}><summary>Findings, with cause and remedy</summary>
{%- for f in bad %}{{ finding(f) }}{% endfor %}</details>{% endif %}
{%- if notes %}
<details><summary>{{ notes | length }} note{{ "s" if notes | length > 1 }}
 that ask{{ "s" if notes | length == 1 }} for no change: {{ notes | join(", ", attribute="id") }}</summary>
{%- for f in notes %}{{ finding(f) }}{% endfor %}</details>{% endif %}
{%- if run.not_judged %}<p class="small soft">The log has no figures for:
 {{ run.not_judged | join(", ") }}</p>{% endif %}
</div></article>{% endfor %}</div></section>
{%- endif %}
{%- if evaluations %}
<section id="evaluations"><h2>Evaluations</h2>
{%- for e in evaluations %}<div class="box scroll"><header><h3>{{ e.name }}
</h3><span class="soft small">{{ e.model }}</span>
</header><table><tr><th>task</th><th>metric</th><th class="number">value</th><th>95 % interval</th><th>rows</th></tr>
{%- for row in e.rows %}<tr><td>{{ row.task }}</td><td>{{ row.metric }}</td><td class="number">{{ row.value }}</td>
<td>{{ row.interval }}</td><td>{{ row.rows }}</td></tr>{% endfor %}</table>
{%- for remark in e.remarks %}<p class="small soft">{{ remark }}</p>{% endfor %}
{%- if e.tests %}<h4>Against {{ evaluations[0].name }}, row by row</h4><ul class="remarks">
{%- for test in e.tests %}<li>{{ test }}</li>{% endfor %}</ul>{% endif %}
{%- if e.problem %}<p class="soft">No paired test: {{ e.problem }}</p>{% endif %}
</div>{% endfor %}</section>
{%- endif %}
{%- if runs %}
<section id="curves"><h2>Curves</h2><noscript><p>The curves need JavaScript.</p></noscript><div id="plots">
</div></section>
{%- endif %}
{%- if samples_kept %}
<section id="samples"><h2>Samples</h2>
{%- if samples_kept < samples_of %}<p class="small soft" id="thinned">{{ "{:,}".format(samples_kept) }} of
 {{ "{:,}".format(samples_of) }} samples are in this page, whole groups spread over the steps, to keep it below
 {{ max_mb }} MB; --max_mb gives it more, samples.jsonl has all.</p>{% endif %}
<noscript><p>The samples need JavaScript.</p></noscript><div id="browser"></div></section>
{%- endif %}
{%- if runs %}
<section id="time"><h2>Time and memory</h2><div class="cards">
{%- for run in runs %}{% set t = run.time %}
<div class="box scroll"><header>{{ dot(loop.index0) }}<h3>{{ run.name }}</h3></header>
{%- if t.phases %}<div class="shares" aria-hidden="true">{% for p in t.phases %}<i style="width:
{{- '%.1f' % (100 * p.share) }}%;background:var(--run{{ loop.index0 % 8 }})"></i>{% endfor %}</div>
<table><tr><th>of a step (median)</th><th class="number">s, first</th><th class="number">s, last</th>
<th class="number">share</th></tr>
{%- for p in t.phases %}<tr><td>{{ dot(loop.index0) }} {{ p.name }}</td><td class="number">{{ "%.3g" % p.first }}</td>
<td class="number">{{ "%.3g" % p.last }}</td><td class="number">{{ "%.0f" % (100 * p.share) }} %</td></tr>{% endfor %}
{%- for o in t.others %}<tr><td>{{ o.name }}</td><td class="number">{{ count(o.first) }}</td>
<td class="number">{{ count(o.last) }}</td><td></td></tr>{% endfor %}</table>
{%- else %}<p class="soft">The log has no times.</p>{% endif %}
{%- if t.phases or t.others %}<p class="small soft">Medians over the first and the last stretch of the run, of 3 to 20
 steps.</p>{% endif %}
{%- if t.memory %}<table class="memory"><tr><th>memory (median)</th>
<th class="number">first third</th><th class="number">last third</th><th class="number">growth</th></tr>
{%- for m in t.memory %}<tr><td>{{ m.name }}</td><td class="number">{{ "%.4g" % m.first }}</td>
<td class="number">{{ "%.4g" % m.last }}</td><td class="number">
{%- if m.grown is not none %}{{ "%+.1f" % (100 * m.grown) }} %{% endif %}</td></tr>{% endfor %}</table>
{%- else %}<p class="small soft">The log has no figures of memory.</p>{% endif %}</div>{% endfor %}
</div></section>
<section id="settings"><h2>Settings</h2><div class="cards">
{%- for run in runs %}<div class="box"><header>{{ dot(loop.index0) }}<h3>{{ run.name }}</h3></header>
{%- if run.command %}<p>To repeat it:</p><pre class="command">{{ run.command }}</pre>{% endif %}
{%- if run.versions %}<p class="small">Versions: {% for k, v in run.versions.items() %}{{ k }} {{ v }}
{{- ", " if not loop.last }}{% endfor %}</p>{% else %}<p class="small soft">The run did not log its versions.</p>
{% endif %}
{%- if run.settings %}<details><summary>All {{ run.settings | length }} settings</summary><div class="scroll"><table>
{%- for name, value in run.settings.items() %}<tr><td><code>{{ name }}</code>
</td><td class="value mono">{{ value }}</td></tr>
{%- endfor %}</table></div></details>{% else %}<p class="small soft">No settings lie beside the log.</p>{% endif %}
</div>{% endfor %}</div></section>
{%- endif %}
</main>
<script type="text/plain" id="curve-data">{{ curve_data | safe }}</script>
<script type="text/plain" id="sample-data">{{ sample_data | safe }}</script>
<script type="text/plain" id="sample-names">{{ sample_names | safe }}</script>
<script type="text/plain" id="plot-library">{{ library | safe }}</script>
<script nonce="{{ nonce }}">"use strict";
{{ script | safe }}</script>
</body></html>
"""
STYLE = """\
/* The page of report.py: light and dark, from phone width up. */
:root {
  color-scheme: light dark;
  --ink: light-dark(#1d2330, #e6e9ef); --soft: light-dark(#5b6475, #a3acbb); --line: light-dark(#d9dee7, #363d4a);
  --paper: light-dark(#fff, #1b2028); --back: light-dark(#f4f6f9, #12161c); --mark: light-dark(#0b5cad, #7cb8ff);
  --good: light-dark(#17703b, #7ddb9d); --good-back: light-dark(#e2f4e8, #153423);
  --bad: light-dark(#a8201a, #ff9d94); --bad-back: light-dark(#fdeae8, #41201d);
  --note: light-dark(#7a5200, #f0c767); --note-back: light-dark(#fdf3dc, #3a2f12);
  --add: light-dark(#d3f0dc, #1d4a2d); --cut: light-dark(#fbdbd8, #5a2622); --run0: light-dark(#0072b2, #5ab4ec);
  --run1: light-dark(#d55e00, #ff9248); --run2: light-dark(#00875f, #3fcf9f); --run3: light-dark(#b0518a, #e79cc9);
  --run4: light-dark(#a06a00, #edb84a); --run5: light-dark(#3a8fc4, #9bd3f7); --run6: light-dark(#6a4fa3, #b7a2ea);
  --run7: light-dark(#5c5c5c, #b9b9b9);
}
:root[data-theme=light] { color-scheme: light }
:root[data-theme=dark] { color-scheme: dark }
* { box-sizing: border-box }
html { scroll-padding-top: 3.2rem }
body {
  margin: 0; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink);
  background: var(--back);
}
h1, h2, h3, h4, p, ul, ol, dl, dd, figure { margin: 0; padding: 0 }
h1 { font-size: 1.05rem }
h2 { font-size: 1.25rem; margin: 2rem 0 .7rem }
h3 { font-size: 1.02rem }
h4 { font-size: .92rem }
a { color: var(--mark) }
.bar {
  position: sticky; top: 0; z-index: 9; background: var(--paper); border-bottom: 1px solid var(--line);
  padding: .45rem 1rem; display: flex; gap: .3rem 1rem; align-items: center; white-space: nowrap; overflow-x: auto;
  scrollbar-width: none;
}
.bar nav { display: flex; gap: .9rem; flex: 1 }
.bar nav a { text-decoration: none; padding: .15rem 0 }
.bar nav a:hover { text-decoration: underline }
main { max-width: 90rem; margin: 0 auto; padding: 1rem }
.skip { position: absolute; left: -99rem }
.skip:focus { left: 1rem; top: .4rem; z-index: 10; background: var(--paper); padding: .3rem .6rem }
:focus-visible { outline: 2px solid var(--mark); outline-offset: 2px }
.cards {
  display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); align-items: start;
}
.box { background: var(--paper); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem; min-width: 0 }
.one .box.run { display: grid; grid-template-columns: minmax(0, 1.15fr) minmax(0, 1fr); gap: 0 2rem }
.one .box.run > header, .one .box.run > .wide { grid-column: 1/-1 }
.box header { display: flex; flex-wrap: wrap; gap: .2rem .7rem; align-items: baseline; margin-bottom: .5rem }
.dot { display: inline-block; width: .75em; height: .75em; border-radius: 50%; flex: none }
.soft { color: var(--soft) }
.small { font-size: .86rem }
.badge {
  display: inline-block; border-radius: .7rem; padding: .05rem .65rem; font-size: .86rem; font-weight: 600;
  background: var(--note-back); color: var(--note);
}
.badge.good { background: var(--good-back); color: var(--good) }
.badge.bad { background: var(--bad-back); color: var(--bad) }
.big { font-size: 1.7rem; font-weight: 650; line-height: 1.25 }
.big small { font-size: .85rem; font-weight: 400; color: var(--soft) }
.asked { margin: .7rem 0; display: grid; gap: .15rem .8rem; grid-template-columns: max-content 1fr }
.asked dt { font-weight: 600 }
.asked dd { min-width: 0; overflow-wrap: anywhere }
.figures { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: .5rem 0 }
.figures b { font-weight: 650 }
svg.small-curve {
  width: 100%; height: auto; max-height: 9.5rem; display: block; background: var(--back); border-radius: .4rem;
}
svg .score { stroke: var(--run1) }
svg .held_out { stroke: var(--run0); stroke-width: 2.4 }
.key-score { color: var(--run1) }
.key-held_out { color: var(--run0) }
details { margin: .5rem 0 0 }
summary { cursor: pointer }
.finding {
  border-left: 4px solid var(--bad); background: var(--bad-back); border-radius: .3rem; padding: .5rem .8rem;
  margin-top: .6rem;
}
.finding.note { border-color: var(--note); background: var(--note-back) }
.finding ul { padding-left: 1.2rem }
.finding p, .finding li { overflow-wrap: anywhere }
.remarks { padding-left: 1.2rem; overflow-wrap: anywhere }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .92rem }
th, td {
  text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: baseline;
}
td:first-child { white-space: nowrap }
td.value:first-child { white-space: normal }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
code, pre, .mono { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
pre, .text { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; direction: ltr; margin: 0 }
pre.command { background: var(--back); border: 1px solid var(--line); border-radius: .4rem; padding: .5rem .7rem }
.value { overflow-wrap: anywhere; max-width: 28rem; min-width: 5rem }
.shares { display: flex; height: 1.1rem; border-radius: .3rem; overflow: hidden; margin: .4rem 0 }
.shares i { display: block; min-width: 1px }
.controls { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center; margin-bottom: .7rem }
.controls label { display: flex; gap: .35rem; align-items: center; min-width: 0; max-width: 100% }
.controls select { min-width: 0 }
input, select, button {
  font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--line); border-radius: .35rem;
  padding: .22rem .5rem; max-width: 100%;
}
input[type=number] { width: 5.2rem }
input[type=checkbox], input[type=range] { padding: 0 }
button { cursor: pointer }
button[aria-pressed=true], button[aria-selected=true] {
  border-color: var(--mark); color: var(--mark); font-weight: 600;
}
.charts {
  display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); margin-top: .5rem;
}
.chart { padding: .6rem .7rem }
.chart h4 { overflow-wrap: anywhere }
.plot { height: 230px; touch-action: pan-y }
.meaning {
  font-size: .83rem; color: var(--soft); min-height: 2.6em; display: -webkit-box; -webkit-line-clamp: 2;
  -webkit-box-orient: vertical; overflow: hidden;
}
.meaning.whole { -webkit-line-clamp: 99 }
button.more { border: 0; background: none; padding: 0; color: var(--mark); font-size: .83rem }
.grid { border: 1px solid var(--line); border-radius: .5rem; background: var(--paper); overflow: hidden }
.grid { --columns: 5.5rem 4rem 5rem minmax(6rem, 1fr) minmax(8rem, 2fr) }
.grid .head, .grid .row {
  display: grid; grid-template-columns: var(--columns); gap: .6rem; padding: 0 .7rem; align-items: center;
  height: 30px; white-space: nowrap;
}
.grid .head { border-bottom: 1px solid var(--line); font-weight: 600 }
.grid .head button { border: 0; background: none; padding: 0; font-weight: 600; text-align: left }
.grid .view { height: 360px; overflow-y: auto; position: relative; contain: strict }
.grid .row { position: absolute; left: 0; right: 0; cursor: pointer; border-bottom: 1px solid var(--line) }
.grid .row[aria-selected=true] { background: var(--note-back) }
.grid .row > * { overflow: hidden; text-overflow: ellipsis; unicode-bidi: isolate }
.side {
  display: grid; grid-auto-flow: column; grid-auto-columns: minmax(17rem, 1fr); gap: .7rem; overflow-x: auto;
  padding-bottom: .4rem;
}
.side > .box { padding: .7rem }
.side > .chosen { border-color: var(--mark); border-width: 2px }
.turn { border-left: 3px solid var(--line); padding: .15rem 0 .15rem .7rem; margin: .5rem 0 }
.turn.assistant { border-color: var(--run0) }
.turn.tool { border-color: var(--run4) }
.turn.system { border-color: var(--run7) }
.odd { background: var(--cut); color: var(--bad); border-radius: .2rem; font-size: .85em; padding: 0 .15em }
ins { background: var(--add); text-decoration: none }
del { background: var(--cut) }
.pair {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: .7rem; margin: .6rem 0;
}
.differing { max-height: 17rem; overflow-y: auto; padding-top: 0 }
.differing th { position: sticky; top: 0; background: var(--paper) }
main section:first-child h2:first-child { margin-top: .4rem }
#overview td, #overview th { white-space: nowrap; vertical-align: top }
#overview td:nth-child(3) { white-space: normal; min-width: 10rem }
table.memory { margin-top: .8rem }
#evaluations .box { margin-bottom: .8rem }
#evaluations h4 { margin: .7rem 0 .2rem }
#sample-detail { margin-top: 1rem }
#sample-detail h4 { margin: .6rem 0 .3rem }
@media (max-width: 46rem) {
  body { font-size: 16px }
  .bar { padding: .45rem .7rem }
  .bar nav { gap: .65rem; font-size: .95rem }
  main { padding: .7rem }
  .one .box.run { display: block }
  .asked { display: block }
  .asked dt { margin-top: .4rem }
  .big { font-size: 1.4rem }
  .box { padding: .8rem }
  input, select, button { min-height: 2.2rem }
  .hide-small, #overview small { display: none !important }
  .grid { --columns: 4.5rem 4.5rem minmax(6rem, 1fr) }
  .side { grid-auto-columns: 82vw }
}
@media (scripting: enabled) {
  #plots { min-height: 100vh }
  #browser { min-height: 480px }
}
@media (prefers-reduced-motion: reduce) {
  * { transition: none !important; animation: none !important }
}
@media print {
  .bar, .controls { display: none }
}
"""
CURVES_SCRIPT = r"""// The curves, which plotly draws.
const curves = {data: null, hidden: new Set(), smooth: 0, log: false, bands: true, words: "", charts: [], range: null};

// Exponential moving average, each value divided by the weight that it stands for.
function smoothed(values, weight) {
  let sum = 0, of = 0;
  return values.map(value => {
    sum = weight * sum + (1 - weight) * value;
    of = weight * of + 1 - weight;
    return sum / of;
  });
}

// Plotly reads some markup in names.
const safeName = text => text.replace(ODD, "�").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
  .slice(0, 80);

function lineOf(x, y, i, more = {}) {
  const few = x.length < 20;
  return {x, y, type: "scatter", mode: few ? "lines+markers" : "lines", line: {color: runColor(i), width: 1.8},
    marker: {size: 5}, hovertemplate: "%{y:.5~g}", ...more};
}

// Mean, lowest and highest of the runs of one setting at the steps that two of them have.
function bandOf(series) {
  const at = new Map();
  for (const s of series) s.x.forEach((x, k) => at.set(x, [...(at.get(x) || []), s.y[k]]));
  const steps = [...at.keys()].filter(x => at.get(x).length > 1).sort((a, b) => a - b);
  const of = pick => steps.map(x => pick(at.get(x)));
  return {x: steps, mean: of(v => v.reduce((a, b) => a + b) / v.length), low: of(v => Math.min(...v)),
    high: of(v => Math.max(...v))};
}

function bandTraces(series, names) {
  const band = bandOf(series), i = series[0].run, weight = curves.smooth;
  const [mean, low, high] = [band.mean, band.low, band.high].map(v => weight ? smoothed(v, weight) : v);
  const edge = {mode: "lines", line: {width: 0}, hoverinfo: "skip", showlegend: false};
  return [lineOf(band.x, low, i, edge),
    lineOf(band.x, high, i, {...edge, fill: "tonexty"}),
    lineOf(band.x, mean, i, {name: safeName(`mean of ${series.length} seeds: ${names}`)})];
}

function tracesOf(metric) {
  const runs = curves.data.runs, traces = [], settings = new Map();
  for (const s of metric.series) {
    if (curves.hidden.has(s.run)) continue;
    const setting = curves.bands ? runs[s.run].setting : s.run;
    settings.set(setting, [...(settings.get(setting) || []), s]);
  }
  for (const series of settings.values()) {
    if (series.length > 1 && bandOf(series).x.length) {
      traces.push(...bandTraces(series, series.map(s => runs[s.run].name).join(", ")));
      continue;
    }
    for (const s of series) {
      const name = safeName(runs[s.run].name), rough = curves.smooth && s.x.length > 2;
      if (rough) traces.push(lineOf(s.x, s.y, s.run, {opacity: .25, hoverinfo: "skip", showlegend: false}));
      traces.push(lineOf(s.x, rough ? smoothed(s.y, curves.smooth) : s.y, s.run, {name}));
    }
  }
  return traces;
}

// Ticks at the lower edge where checkpoints lie, at the upper edge where evaluations do; dashed lines for findings.
function marksOf(metric) {
  const shapes = [], annotations = [];
  const tick = (x, i, y0, y1) => shapes.push({type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0, y1,
    line: {color: runColor(i), width: 2}});
  for (const s of metric.series) {
    if (curves.hidden.has(s.run)) continue;
    const run = curves.data.runs[s.run];
    run.checkpoints.slice(-200).forEach(x => tick(x, s.run, 0, .05));
    run.evaluations.slice(-200).forEach(x => tick(x, s.run, .95, 1));
    for (const f of run.findings.filter(f => f.metric === metric.name || f.metric === s.as)) {
      shapes.push({type: "line", xref: "x", yref: "paper", x0: f.step, x1: f.step, y0: 0, y1: 1,
        line: {color: color("--bad"), width: 1.5, dash: "dash"}});
      annotations.push({x: f.step, y: 1, yref: "paper", yanchor: "top", xanchor: "left", text: f.id, showarrow: false,
        font: {size: 11, color: color("--bad")}});
    }
  }
  return {shapes, annotations};
}

function draw(chart) {
  const ink = color("--soft"), line = color("--line"), touch = matchMedia("(pointer: coarse)").matches;
  const axis = {gridcolor: line, zerolinecolor: line, linecolor: line};
  const positive = chart.metric.series.some(s => s.y.some(y => y > 0));
  const layout = {margin: {l: 52, r: 10, t: 8, b: 34}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: ink, size: 12, family: "system-ui, sans-serif"}, hovermode: "x unified", showlegend: false,
    hoverlabel: {bgcolor: color("--paper"), font: {color: color("--ink")}}, dragmode: touch ? false : "zoom",
    xaxis: {...axis, title: {text: "step", standoff: 4}, ...(curves.range ? {range: curves.range} : {})},
    yaxis: {...axis, type: curves.log && positive ? "log" : "linear", exponentformat: "power", automargin: true},
    ...marksOf(chart.metric)};
  const options = {responsive: true, displaylogo: false, displayModeBar: false};
  Plotly.react(chart.plot, tracesOf(chart.metric), layout, options);
  if (!chart.drawn) chart.plot.on("plotly_relayout", change => sameRange(chart, change));
  chart.drawn = true;
  chart.stale = false;
}

// A zoom along the steps holds for all charts. Those that follow tell of it too, later: what is known ends it there.
function sameRange(chart, change) {
  const range = change["xaxis.autorange"] ? null : [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  if ((range && range[0] === undefined) || String(range) === String(curves.range)) return;
  curves.range = range;
  const axis = range ? {"xaxis.range": range} : {"xaxis.autorange": true};
  for (const other of curves.charts) if (other !== chart && other.drawn) Plotly.relayout(other.plot, axis);
}

function redraw() {
  for (const chart of curves.charts) {
    if (!chart.drawn) continue;
    if (chart.box.offsetParent) draw(chart);
    else chart.stale = true;
  }
}

function chartBox(metric) {
  const plot = el("div", {class: "plot"});
  const named = [...new Set(metric.series.map(s => s.as))].filter(name => name !== metric.name);
  const meaning = el("p", {class: "meaning"}, metric.meaning || "not in the glossary of references/metrics.md");
  for (const [word, text] of [["Healthy", metric.healthy], ["Warning", metric.warning]]) {
    if (text) meaning.append(" ", el("b", {}, word + ": "), text);
  }
  const bad = metric.series.filter(s => s.bad.length)
    .map(s => `${curves.data.runs[s.run].name}: ${s.bad.length} not finite, first at step ${s.bad[0]}`);
  const many = metric.series.filter(s => s.of > s.x.length).map(s => `${s.of} steps, drawn with ${s.x.length} points`);
  const said = [...(named.length ? ["in the log: " + named.join(", ")] : []), ...bad, ...many].join(" · ");
  const box = el("figure", {class: "box chart"}, el("h4", {}, shown(metric.name)), plot, meaning,
    el("button", {type: "button", class: "more", onclick: () => meaning.classList.toggle("whole")}, "more"),
    said ? el("p", {class: "small soft text"}, shown(said)) : null);
  box.dataset.metric = metric.name;
  return {metric, box, plot, drawn: false};
}

function groupBox(group, first) {
  const charts = curves.data.metrics.filter(m => m.group === group).map(chartBox);
  curves.charts.push(...charts);
  const grid = el("div", {class: "charts"}, ...charts.map(chart => chart.box));
  const box = el("details", {open: first}, el("summary", {}, el("b", {}, group), ` (${charts.length})`), grid);
  for (const chart of charts) whenNear(chart.box, () => draw(chart));
  box.addEventListener("toggle", () => charts.filter(chart => chart.stale).forEach(draw));
  return box;
}

function runChoice(run, i) {
  const box = el("input", {type: "checkbox", checked: true, onchange: event => {
    event.target.checked ? curves.hidden.delete(i) : curves.hidden.add(i);
    redraw();
  }});
  return el("label", {}, box, runDot(i), shown(run.name));
}

function onlyMetrics(words, groups) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  for (const chart of curves.charts) {
    const text = (chart.metric.name + " " + chart.metric.series.map(s => s.as).join(" ")).toLowerCase();
    chart.box.hidden = !wanted.every(word => text.includes(word));
  }
  for (const group of groups) {
    const left = [...group.querySelectorAll("figure")].some(box => !box.hidden);
    group.hidden = !left;
    if (wanted.length && left) group.open = true;
  }
}

function controls(groups) {
  const runs = curves.data.runs, several = new Set(runs.map(run => run.setting)).size < runs.length;
  const check = (text, key) => el("label", {}, el("input", {type: "checkbox", id: "curves-" + key, checked: curves[key],
    onchange: event => { curves[key] = event.target.checked; redraw(); }}), text);
  const smooth = el("input", {type: "range", id: "curves-smooth", min: "0", max: "0.98", step: "0.02", value: "0",
    oninput: event => { curves.smooth = Number(event.target.value); redraw(); }});
  const words = el("input", {type: "search", id: "curves-words", placeholder: "such as kl or time",
    oninput: event => onlyMetrics(event.target.value, groups)});
  return el("div", {class: "controls"}, el("label", {}, "metrics", words), el("label", {}, "smoothing", smooth),
    check("log scale", "log"), several ? check("seeds of a setting as a band", "bands") : null,
    ...(runs.length > 1 ? runs.map(runChoice) : []),
    el("span", {class: "small soft"},
      "drag to zoom, double-click to undo; ticks below: checkpoints, above: evaluations"));
}

async function startCurves() {
  const place = byId("plots");
  if (!place) return;
  curves.data = await unpack("curve-data");
  const library = el("script", {});
  library.nonce = pageNonce;
  library.textContent = await unpackText("plot-library");
  document.head.append(library);
  const groups = curves.data.groups.map((group, i) => groupBox(group, i === 0));
  place.append(controls(groups), ...groups);
  place.style.minHeight = 0; // which kept the place of the charts
  whenTheme.push(redraw);
}
"""
SAMPLES_SCRIPT = r"""// The table of samples and its filters.
const RUN = 0, STEP = 1, KIND = 2, SCORE = 3, FINISHED = 4, PROMPT = 5, COMPLETION = 6, REWARDS = 7, OTHERS = 8;
const ROW_HEIGHT = 30;
const samples = {rows: [], prompts: [], found: [], chosen: -1, sort: null, names: [], lines: []};

// What a row says of its completion in one line: of a conversation all that was sampled.
function lineText(row) {
  if (row[COMPLETION] !== "") return plain(row[COMPLETION]);
  const others = row[OTHERS];
  if (Array.isArray(others.messages)) return others.messages.map(m => plain(m && m.content)).join(" ");
  return "";
}

// Whether a row's number lies between two ends; an empty end holds none back, a missing number fits no end.
function between(value, low, high) {
  if (low === "" && high === "") return true;
  return value !== null && value !== undefined && (low === "" || value >= Number(low)) &&
    (high === "" || value <= Number(high));
}

function wantedBy(asked) {
  const words = asked.text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), search = words ? new RegExp(words, "iu") : null;
  const inPrompt = search ? samples.prompts.map(p => search.test(lastOf(p))) : [];
  return row => (asked.run === "" || row[RUN] === Number(asked.run)) &&
    (asked.kind === "" || row[KIND] === asked.kind) &&
    between(row[STEP], asked.stepLow, asked.stepHigh) && between(row[SCORE], asked.low, asked.high) &&
    (asked.reward === "" || between(row[REWARDS][asked.reward] ?? null, asked.rewardLow, asked.rewardHigh)) &&
    (!asked.cut || !row[FINISHED]) && (!search || inPrompt[row[PROMPT]] || search.test(lineText(row)));
}

const SORTS = {step: row => row[STEP], kind: row => row[KIND], score: row => row[SCORE]};

function sorted(found) {
  if (!samples.sort) return found;
  const value = SORTS[samples.sort.by], sign = samples.sort.down ? -1 : 1, rows = samples.rows;
  return found.sort((a, b) => {
    const x = value(rows[a]), y = value(rows[b]);
    if (x === y) return a - b;
    return x === null ? 1 : y === null ? -1 : sign * (x < y ? -1 : 1);
  });
}

function filterSamples() {
  const asked = Object.fromEntries([...byId("filters").elements].filter(e => e.name)
    .map(e => [e.name, e.type === "checkbox" ? e.checked : e.value]));
  const wanted = wantedBy(asked), found = [];
  samples.rows.forEach((row, i) => { if (wanted(row)) found.push(i); });
  samples.found = sorted(found);
  samples.chosen = -1;
  const all = samples.rows.length.toLocaleString("en"), some = found.length.toLocaleString("en");
  byId("sample-count").textContent = found.length === samples.rows.length ? `${all} samples` : `${some} of ${all}`;
  samples.lines.forEach(line => line.remove());
  samples.lines = [];
  byId("sample-space").style.height = `${ROW_HEIGHT * found.length}px`;
  byId("sample-view").scrollTop = 0;
  showRows();
}

function rowLine(place) {
  const row = samples.rows[samples.found[place]];
  const text = lineText(row).slice(0, 300).replace(/\s+/g, " ");
  const line = el("div", {class: "row", role: "option", id: `row-${place}`, "aria-selected":
    String(place === samples.chosen), "aria-posinset": String(place + 1), "aria-setsize": String(samples.found.length)},
    el("span", {}, runDot(row[RUN]), ` ${row[STEP] ?? ""}`), el("span", {class: "hide-small"}, shown(row[KIND])),
    el("span", {}, figure(row[SCORE]) + (row[FINISHED] ? "" : " ✂")),
    el("span", {class: "hide-small"}, shown(lastOf(samples.prompts[row[PROMPT]]).slice(0, 200).replace(/\s+/g, " "))),
    el("span", {}, shown(text)));
  line.style.top = `${ROW_HEIGHT * place}px`;
  line.addEventListener("click", () => choose(place));
  return line;
}

// Only the rows that are seen are elements.
function showRows() {
  const view = byId("sample-view"), first = Math.max(0, Math.floor(view.scrollTop / ROW_HEIGHT) - 5);
  const end = Math.min(samples.found.length, first + Math.ceil(view.clientHeight / ROW_HEIGHT) + 11);
  samples.lines.forEach(line => line.remove());
  samples.lines = [];
  for (let place = first; place < end; place++) samples.lines.push(rowLine(place));
  view.append(...samples.lines);
}

function choose(place, focus = false) {
  if (!samples.found.length) return;
  const view = byId("sample-view");
  samples.chosen = Math.max(0, Math.min(samples.found.length - 1, place));
  const top = samples.chosen * ROW_HEIGHT;
  if (top < view.scrollTop) view.scrollTop = top;
  if (top + ROW_HEIGHT > view.scrollTop + view.clientHeight) view.scrollTop = top + ROW_HEIGHT - view.clientHeight;
  showRows();
  view.setAttribute("aria-activedescendant", `row-${samples.chosen}`);
  showDetail(byId("sample-detail"), samples.found[samples.chosen]);
}

function keys(event) {
  const page = Math.floor(byId("sample-view").clientHeight / ROW_HEIGHT), now = samples.chosen;
  const to = {ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + page, PageUp: now - page, Home: 0,
    End: samples.found.length - 1}[event.key];
  if (to === undefined) return;
  event.preventDefault();
  choose(to);
}

function headLine() {
  const sortable = (text, by) => el("button", {type: "button", onclick: () => {
    samples.sort = {by, down: samples.sort?.by === by ? !samples.sort.down : true};
    filterSamples();
  }}, text + " ⇅");
  return el("div", {class: "head"}, sortable("step", "step"),
    el("span", {class: "hide-small"}, sortable("kind", "kind")),
    sortable("score", "score"), el("span", {class: "hide-small"}, "prompt"), el("span", {}, "completion"));
}

function selectOf(name, label, values) {
  const options = values.map(([value, text]) => el("option", {value: String(value)}, shown(text)));
  return el("label", {}, label, el("select", {name}, el("option", {value: ""}, "all"), ...options));
}

function rangeOf(label, low, high) {
  const input = (name, hint) => el("input", {type: "number", step: "any", name, placeholder: hint,
    "aria-label": `${label} ${hint}`});
  return el("label", {}, label, input(low, "from"), input(high, "to"));
}

function filterForm() {
  const rows = samples.rows, kinds = [...new Set(rows.map(row => row[KIND]))];
  const runs = [...new Set(rows.map(row => row[RUN]))], rewards = new Set();
  for (const row of rows) for (const name in row[REWARDS]) rewards.add(name);
  const form = el("form", {id: "filters", class: "controls", onsubmit: event => event.preventDefault()},
    el("label", {}, "text", el("input", {type: "search", name: "text", placeholder: "in prompt or completion"})),
    rangeOf("step", "stepLow", "stepHigh"), rangeOf("score", "low", "high"));
  if (runs.length > 1) form.append(selectOf("run", "run", runs.map(i => [i, samples.names[i]])));
  else form.append(el("input", {type: "hidden", name: "run"}));
  form.append(selectOf("kind", "kind", kinds.map(kind => [kind, kind])));
  form.append(selectOf("reward", "reward", [...rewards].map(name => [name, name])),
    rangeOf("its value", "rewardLow", "rewardHigh"),
    el("label", {}, el("input", {type: "checkbox", name: "cut"}), "✂ cut off only"),
    el("button", {type: "reset"}, "all again"), el("output", {id: "sample-count", class: "small soft"}));
  let waiting = 0;
  form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filterSamples, 120); });
  form.addEventListener("reset", () => setTimeout(filterSamples));
  return form;
}

function showTable(place) {
  const space = el("div", {id: "sample-space"});
  const view = el("div", {id: "sample-view", class: "view", tabindex: "0", role: "listbox",
    "aria-label": "samples; arrow keys choose one", onkeydown: keys}, space);
  view.addEventListener("scroll", () => requestAnimationFrame(showRows), {passive: true});
  place.replaceChildren(filterForm(), el("div", {class: "grid"}, headLine(), view), el("div", {id: "sample-detail"}));
  filterSamples();
}

async function startSamples() {
  const place = byId("browser");
  if (!place) return;
  whenNear(place, async () => {
    try {
      Object.assign(samples, await unpack("sample-data"), {names: await unpack("sample-names")});
      const body = el("div", {}), pairs = beforeAndAfter();
      const tabs = [["all samples", showTable], ...(pairs.length ? [["before and after", showPairs]] : [])];
      const press = (pressed, show) => {
        buttons.forEach(button => button.setAttribute("aria-pressed", String(button === pressed)));
        show(body, pairs);
      };
      const buttons = tabs.map(([name, show]) =>
        el("button", {type: "button", onclick: event => press(event.target, show)}, name));
      place.replaceChildren(el("div", {class: "controls"}, ...buttons), body);
      buttons[0].click();
    } catch (error) {
      failed(place, error);
    }
  });
}
"""
DETAIL_SCRIPT = r"""// A sample with its group, conversations, tokens, and before beside after.
function turn(message) {
  const of = message && typeof message === "object" ? message : {content: message};
  const role = plain(of.role || "text"), known = ["assistant", "tool", "system"].includes(role) ? role : "";
  const box = el("div", {class: "turn " + known}, el("b", {class: "small"}, shown(role)));
  if (plain(of.content)) box.append(el("pre", {}, shown(plain(of.content))));
  for (const call of Array.isArray(of.tool_calls) ? of.tool_calls : []) {
    const what = (call && call.function) || call || {};
    box.append(el("pre", {class: "small"}, "calls ", shown(`${plain(what.name)} ${plain(what.arguments)}`)));
  }
  return box;
}

// What a colour says of a token: its log-prob, from 0 (none) to -5 (full), or its advantage by sign and size.
const COLOURS = {logprobs: "log-prob", advantages: "advantage"};
const HINTS = {logprobs: "the redder, the less likely the token was to the sampler",
  advantages: "green: made likelier, red: made less likely"};
let colouredBy = "";

const areNumbers = (values, tokens) =>
  Array.isArray(values) && Array.isArray(tokens) && values.length === tokens.length && values.length > 0;

// The tokens of a sample as [text, their numbers]: those that share a character stand together, what is sampled
// behind the shown text is its end.
function tokensOf(others, texts) {
  if (Array.isArray(others.tokens)) return [others.tokens.map((token, i) => [plain(token), [i]])];
  const lengths = others.token_lengths;
  let next = 0;
  return texts.map((text, place) => {
    const letters = Array.from(text), found = [];
    let at = 0, waiting = [];
    while (next < lengths.length && (at < letters.length || place === texts.length - 1)) {
      waiting.push(next);
      const length = Math.max(0, Number(lengths[next++]) || 0);
      if (!length || at >= letters.length) continue;
      found.push([letters.slice(at, at + length).join(""), waiting]);
      [at, waiting] = [at + length, []];
    }
    if (at < letters.length) found.push([letters.slice(at).join(""), []]);
    if (waiting.length) found.push(["∎", waiting]);
    return found;
  });
}

function tokenText(tokens, values, name) {
  const most = name === "logprobs" ? 5 : Math.max(1e-9, ...values.map(v => Math.abs(Number(v) || 0)));
  return tokens.map(([text, numbers]) => {
    const own = numbers.map(i => Number(values[i]) || 0);
    const value = own.reduce((a, b) => Math.abs(b) > Math.abs(a) ? b : a, 0);
    const title = numbers.length ? `${COLOURS[name]} ${own.map(figure).join(", ")}` : "";
    const share = Math.round(60 * Math.min(1, Math.abs(value) / most));
    const part = el("span", {title}, text === "∎" ? el("span", {class: "soft"}, "∎") : shown(text));
    if (share) part.style.background =
      `color-mix(in srgb, var(${name === "logprobs" || value < 0 ? "--bad" : "--good"}) ${share}%, transparent)`;
    return part;
  });
}

// Which colours a sample's tokens can have.
const coloursOf = others => Object.keys(COLOURS)
  .filter(name => areNumbers(others[name], others.tokens) || areNumbers(others[name], others.token_lengths));

function colouredText(row, name) {
  const others = row[OTHERS], values = others[name], box = el("pre", {class: "tokens"});
  const pieces = Array.isArray(others.pieces) ? others.pieces : [{sampled: true, text: plain(row[COMPLETION])}];
  const said = pieces.filter(piece => piece && piece.sampled).map(piece => plain(piece.text));
  const tokens = tokensOf(others, said);
  if (Array.isArray(others.tokens)) box.append(...tokenText(tokens[0], values, name));
  else for (const piece of pieces) {
    if (piece && piece.sampled) box.append(...tokenText(tokens.shift(), values, name));
    else box.append(el("span", {class: "soft"}, shown(plain(piece && piece.text))));
  }
  return box;
}

function saidBy(row) {
  const {messages, pieces} = row[OTHERS], box = el("div", {});
  if (coloursOf(row[OTHERS]).includes(colouredBy)) return el("div", {}, colouredText(row, colouredBy));
  if (Array.isArray(messages)) box.append(...messages.map(turn));
  else if (Array.isArray(row[COMPLETION])) box.append(...row[COMPLETION].map(turn));
  else if (!Array.isArray(pieces)) box.append(el("pre", {}, shown(plain(row[COMPLETION]))));
  if (Array.isArray(pieces)) {
    const whole = el("pre", {}, ...pieces.map(piece => el(piece && piece.sampled ? "ins" : "span", {},
      shown(plain(piece && piece.text)))));
    box.append(el("details", {open: !Array.isArray(messages)}, el("summary", {class: "small"},
      "as the model saw it; what it sampled is marked"), whole));
  }
  return box;
}

// Buttons that colour the tokens of the shown samples, where their log has figures of tokens.
function colourChoice(group, again) {
  const known = [...new Set(group.flatMap(i => coloursOf(samples.rows[i][OTHERS])))];
  if (!known.length) return null;
  const button = (name, text) => el("button", {type: "button", "aria-pressed": String(colouredBy === name),
    onclick: () => { colouredBy = name; again(); }}, text);
  if (!known.includes(colouredBy)) colouredBy = "";
  return el("div", {class: "controls", id: "colours"}, "tokens by", button("", "none"),
    ...known.map(name => button(name, COLOURS[name])),
    colouredBy ? el("span", {class: "small soft"}, HINTS[colouredBy]) : null);
}

const SHOWN_APART = new Set(["messages", "pieces", "tokens", "token_lengths", "logprobs", "advantages", "advantage"]);

function sampleCard(row, mean, chosen) {
  const others = row[OTHERS], said = [];
  for (const [name, value] of Object.entries(row[REWARDS])) said.push(`${name} ${figure(value) || "–"}`);
  if (typeof others.advantage === "number") said.push(`advantage ${figure(others.advantage)}`);
  else if (mean !== null && row[SCORE] !== null) {
    const off = row[SCORE] - mean;
    said.push(`${off < 0 ? "−" : "+"}${figure(Math.abs(off))} against the mean of these`);
  }
  if (!row[FINISHED]) said.push("cut off");
  for (const [name, value] of Object.entries(others)) {
    if (!SHOWN_APART.has(name)) said.push(`${name}: ${plain(value).slice(0, 300)}`);
  }
  return el("div", {class: "box" + (chosen ? " chosen" : "")}, el("h4", {}, `score ${figure(row[SCORE]) || "–"}`),
    el("p", {class: "small soft text"}, shown(said.join(" · "))), saidBy(row));
}

function groupOf(row) {
  const same = [RUN, STEP, KIND, PROMPT], found = [];
  samples.rows.forEach((other, i) => { if (same.every(k => other[k] === row[k])) found.push(i); });
  return found;
}

function showDetail(place, index) {
  const row = samples.rows[index], group = groupOf(row).slice(0, 64);
  const scores = group.map(i => samples.rows[i][SCORE]).filter(score => score !== null);
  const mean = group.length > 1 && scores.length ? scores.reduce((a, b) => a + b) / scores.length : null;
  const prompt = samples.prompts[row[PROMPT]];
  const asked = Array.isArray(prompt) ? prompt.map(turn) : [el("pre", {}, shown(plain(prompt)))];
  const choice = colourChoice(group, () => showDetail(place, index));
  const cards = group.map(i => sampleCard(samples.rows[i], mean, i === index));
  const where = `${samples.names[row[RUN]]} · ${row[KIND]}${row[STEP] === null ? "" : ` · step ${row[STEP]}`}`;
  const title = group.length > 1 ? `${group.length} logged completions of this prompt` : "its completion";
  const pressed = document.activeElement && place.contains(document.activeElement) &&
    document.activeElement.textContent;
  place.replaceChildren(...[el("h3", {}, shown(where)), ...asked, el("h4", {}, title), choice,
    el("div", {class: "side"}, ...cards)].filter(Boolean));
  [...place.querySelectorAll("#colours button")].find(button => button.textContent === pressed)?.focus();
  const chosen = place.querySelector(".chosen");
  if (chosen) chosen.parentNode.scrollLeft = chosen.offsetLeft - chosen.parentNode.offsetLeft;
}

// What both lists of rows have a prompt of: [row of the first, row of the second].
function samePrompts(before, after) {
  const known = new Map(after.map(row => [row[PROMPT], row]));
  return before.filter(row => known.has(row[PROMPT])).map(row => [row, known.get(row[PROMPT])]);
}

// Of each run the prompts of its first and its last held-out evaluation, and those that two of evaluation.py share.
function beforeAndAfter() {
  const pairs = [], evaluated = [];
  samples.names.forEach((name, run) => {
    const rows = samples.rows.filter(row => row[RUN] === run && row[KIND] !== "train");
    const steps = rows.map(row => row[STEP]).filter(step => step !== null);
    if (rows.length && !steps.length) evaluated.push(rows);
    const [first, last] = [Math.min, Math.max].map(pick => steps.reduce((a, b) => pick(a, b), steps[0]));
    if (first === last) return;
    pairs.push(...samePrompts(...[first, last].map(step => rows.filter(row => row[STEP] === step))));
  });
  if (evaluated.length > 1) pairs.push(...samePrompts(evaluated[0], evaluated[evaluated.length - 1]));
  return pairs;
}

// Pieces of two texts by their longest common subsequence of words: [same | removed | added, text].
function difference(a, b) {
  const [x, y] = [a, b].map(text => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || []);
  if (x.length * y.length > 1e6) return [[-1, a], [1, b]];
  const width = y.length + 1, length = new Uint16Array((x.length + 1) * width), parts = [];
  for (let i = x.length - 1; i >= 0; i--) {
    for (let j = y.length - 1; j >= 0; j--) {
      length[i * width + j] = x[i] === y[j] ? length[(i + 1) * width + j + 1] + 1 :
        Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    }
  }
  for (let i = 0, j = 0; i < x.length || j < y.length;) {
    if (i < x.length && j < y.length && x[i] === y[j]) parts.push([0, x[i++], j++]);
    else if (j >= y.length || (i < x.length && length[(i + 1) * width + j] >= length[i * width + j + 1]))
      parts.push([-1, x[i++]]);
    else parts.push([1, y[j++]]);
  }
  return parts;
}

function pairBox([before, after]) {
  const parts = difference(lineText(before), lineText(after));
  const side = (row, name, mine, mark) => el("div", {},
    el("h4", {}, `${name}, ${row[STEP] === null ? samples.names[row[RUN]] : "step " + row[STEP]}: ` +
      `score ${figure(row[SCORE])}`),
    el("pre", {}, ...parts.filter(([kind]) => kind === 0 || kind === mine)
      .map(([kind, text]) => el(kind === 0 ? "span" : mark, {}, shown(text)))));
  return el("div", {class: "box", style: "margin-bottom:.7rem"},
    el("p", {class: "text"}, samples.names.length > 1 ? shown(samples.names[before[RUN]] + ": ") : "",
      shown(lastOf(samples.prompts[before[PROMPT]]).slice(0, 2000))),
    el("div", {class: "pair"}, side(before, "before", -1, "del"), side(after, "after", 1, "ins")));
}

function showPairs(place, pairs, count = 20) {
  const more = el("button", {type: "button", onclick: () => showPairs(place, pairs, count + 50)}, "more");
  place.replaceChildren(el("p", {class: "small soft"},
    "The same held-out prompts at the first and at the last evaluation; what differs is marked."),
    ...pairs.slice(0, count).map(pairBox), ...(pairs.length > count ? [more] : []));
}
"""
PAGE_SCRIPT = r"""// The page: elements, text shown as text, unpacking, themes, renewal; starts curves and samples.
const pageNonce = document.currentScript.nonce;
const byId = id => document.getElementById(id);

// An element; strings become text, never markup.
function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && typeof value !== "string") node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

// Control and format characters, line separators and lone surrogates are shown by their number.
const ODD = /(?![\t\n])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const LONG = 20000; // characters that are laid out at once

function shown(text, length = LONG) {
  const part = document.createDocumentFragment(), whole = String(text);
  let start = 0;
  const visible = whole.length > length ? whole.slice(0, length) : whole;
  for (const match of visible.matchAll(ODD)) {
    part.append(visible.slice(start, match.index));
    const number = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    part.append(el("span", {class: "odd", title: "a character that is not seen"}, "U+" + number));
    start = match.index + match[0].length;
  }
  part.append(visible.slice(start));
  if (whole.length > visible.length) {
    const more = el("button", {type: "button", class: "more"},
      ` … ${(whole.length - length).toLocaleString("en")} more characters`);
    more.addEventListener("click", () => more.replaceWith(shown(whole.slice(length), Infinity)));
    part.append(more);
  }
  return part;
}

const plain = text => typeof text === "string" ? text : text === null || text === undefined ? "" : JSON.stringify(text);

// What a prompt says last, for one line of a table.
function lastOf(prompt) {
  if (!Array.isArray(prompt)) return plain(prompt);
  const last = prompt[prompt.length - 1];
  return last && typeof last === "object" ? plain(last.content) : plain(last);
}

const figure = value => value === null || value === undefined ? "" :
  Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));

async function unpackText(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent.trim()), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
const unpack = async id => JSON.parse(await unpackText(id));

// A colour of the style sheet as rgb(…) in the theme that is shown.
function color(name) {
  const probe = document.body.appendChild(el("i", {style: `color: var(${name})`}));
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
const runColor = i => color("--run" + i % 8);
// A dot in a run's colour.
const runDot = i => el("i", {class: "dot", style: `background: var(--run${i % 8})`});
const whenTheme = [];

function themes() {
  const button = byId("theme"), dark = matchMedia("(prefers-color-scheme: dark)");
  const tell = () => whenTheme.forEach(call => call());
  button.hidden = false;
  dark.addEventListener("change", tell);
  button.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    tell();
  });
}

// A page of --watch loads itself again; where one stood is kept.
function renewal() {
  const every = Number(document.body.dataset.every || 0), key = "scroll " + location.pathname;
  if (!every) return;
  try {
    scrollTo(0, Number(sessionStorage.getItem(key) || 0));
  } catch (error) { /* a browser that keeps nothing for files */ }
  setInterval(() => {
    const reading = document.activeElement && document.activeElement.matches("input[type=text],input[type=number]");
    if (!byId("renew").checked || reading) return;
    try {
      sessionStorage.setItem(key, String(scrollY));
    } catch (error) { /* the same */ }
    location.reload();
  }, 1000 * every);
}

function failed(place, error) {
  place.replaceChildren(el("p", {class: "soft"}, "This browser cannot show it: " + error.message));
  console.error(error);
}

// Call `run` when a place is about to be seen.
function whenNear(place, run) {
  const watcher = new IntersectionObserver(entries => {
    if (!entries.some(entry => entry.isIntersecting)) return;
    watcher.disconnect();
    run();
  }, {rootMargin: "400px"});
  watcher.observe(place);
}

themes();
startCurves().then(renewal).catch(error => failed(byId("plots"), error));
startSamples();
"""
MARK = "<!-- a page of scripts/report.py -->"
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control and format characters, lone surrogates, line separators


def text_as_seen(value):
    """Text whose unseen characters are shown by their number; the template's own parts, and what is no text, stay."""
    if type(value) is not str or value.isprintable():
        return value
    unseen = {c for c in {*value} - {*"\t\n"} if unicodedata.category(c) in UNSEEN}
    return value.translate({ord(c): f"⟦U+{ord(c):04X}⟧" for c in unseen})


def plot_library() -> bytes:
    """Plotly's script as it stands in the page."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError(
            "got no plotly, which draws the curves; expected it installed; try `pip install plotly`"
        ) from None
    return packed([get_plotlyjs().encode()])


def differing_settings(sources: list[Source]) -> list[tuple[str, list[str]]]:
    """The settings that not all runs share, with each run's value; what one lacks, or only writes logs, is last."""
    configs = [source.run.config for source in sources]
    names = [name for name in dict.fromkeys(name for config in configs for name in config) if name not in PLACES]
    found = [(name, ["–" if name not in config else str(config[name]) for config in configs]) for name in names]
    found = [(name, values) for name, values in found if len({*values}) > 1] if len(sources) > 1 else []
    return sorted(found, key=lambda pair: (pair[0] in LOGGED, len({*pair[1]} - {"–"}) < 2))


def environment():
    """Jinja2's environment: all that is put in is escaped, and unseen characters are shown."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise UserError(
            "got no jinja2, which fills in the page; expected it installed; try `pip install jinja2`"
        ) from None
    return Environment(autoescape=True, undefined=StrictUndefined, finalize=text_as_seen)


def page_title(sources: list[Source]) -> str:
    """The names of what the page shows."""
    names = [source.name for source in sources]
    return f"Report: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


def make_page(sources: list[Source], failed: list[dict], library: bytes, max_mb: float, every: float = 0) -> str:
    """The page of runs and evaluations.

    Args:
        failed: {"name", "error"} of what could not be read.
        library: of `plot_library`.
        max_mb: what the page may be large; samples are thinned for it.
        every: seconds after which the page loads itself again; 0 for never.
    """
    now = datetime.datetime.now().astimezone()
    runs, evaluations = ([s for s in sources if bool(s.run) is is_run] for is_run in (True, False))
    scores = score_range([source.run for source in runs])
    shown_runs = [
        run_facts(source, now)
        | {"small": small_curve(source.run, scores), "time": time_of(source.run), "settings": source.run.config}
        for source in runs
    ]
    curve_data = packed_json(curves_of(runs))
    tables = evaluation_tables(evaluations)
    ordered = runs + evaluations  # colours of the samples are those of the runs
    room = 1e6 * max_mb - len(library) - len(curve_data) - len(STYLE) - 200_000
    sample_data, kept = packed_samples(ordered, room)
    present = {
        **{"runs": bool(runs), "evaluations": bool(tables), "curves": bool(runs), "samples": kept},
        **{"time": bool(runs), "settings": bool(runs)},
    }
    names = packed_json([source.name for source in ordered]).decode()
    return (
        environment()
        .from_string(TEMPLATE)
        .render(
            title=page_title(ordered),
            nonce=secrets.token_urlsafe(16),
            written=f"{now:%Y-%m-%d %H:%M:%S}",
            every=every,
            sections=[(name, name.capitalize()) for name, is_there in present.items() if is_there],
            failed=failed,
            runs=shown_runs,
            scores=scores,
            differing=differing_settings(runs),
            has_settings=all(source.run.config and source.run.trainer != "trl" for source in runs),
            evaluations=tables,
            samples_kept=kept,
            samples_of=sum(len(source.samples) for source in ordered),
            max_mb=f"{max_mb:g}",
            style=STYLE,
            script=CURVES_SCRIPT + SAMPLES_SCRIPT + DETAIL_SCRIPT + PAGE_SCRIPT,
            curve_data=curve_data.decode(),
            sample_data=sample_data.decode(),
            sample_names=names,
            library=library.decode() if runs else "",
        )
    )


# ---------------------------------------------------------------------------- command (src/programs/report/command.py)


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    text = "run folder, log, or what evaluation.py wrote, see above; several stand side by side"
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help=text)
    text = "the page (default: report.html in a single run's folder, here with several)"
    parser.add_argument("--output", type=Path, metavar="FILE.html", help=text)
    text = "renew the page every so many seconds until all runs have ended, or Ctrl-C (default: 0, write it once)"
    parser.add_argument("--watch", type=float, default=0.0, metavar="SECONDS", help=text)
    text = "size of the page; samples are thinned for it, evenly and by groups (default: 5)"
    parser.add_argument("--max_mb", "--max-mb", type=float, default=5.0, metavar="MB", help=text)
    return parser


def output_of(args: argparse.Namespace) -> Path:
    """Where the page goes; a file that is no page of ours is not replaced."""
    only = args.runs[0] if len(args.runs) == 1 else None
    folder = (only if only.is_dir() else only.parent) if only else Path()
    name = "report.html"
    if only and (folder / "results.json").is_file():
        name = "page.html"  # evaluation.py's own page has the other name
    path = args.output or folder / name
    need(path.parent.is_dir(), f"got --output {path}; expected a file in a folder that exists; try mkdir {path.parent}")
    need(not path.is_dir(), f"got --output {path}, a folder; expected a file; try {path / 'report.html'}")
    if path.exists():
        with path.open("rb") as file:
            ours = MARK.encode() in file.read(400)
        need(ours, f"got --output {path}, which exists and is no page of this program; expected a new name")
    return path


def write_page(args: argparse.Namespace, path: Path, library: bytes) -> tuple[list[Source], list[dict]]:
    """Write the page once; returns what it shows and what could not be read."""
    sources, failed = read_sources(args.runs)
    if sources:
        write_text(path, make_page(sources, failed, library, args.max_mb, args.watch))
    return sources, failed


def watch(args: argparse.Namespace, path: Path, library: bytes) -> None:
    """Renew the page whenever a log has changed, until all runs have ended."""
    for source in args.runs:
        need(source.exists(), f"got {source}, which does not exist; expected a run; try again once it has begun")
    say(f"watching {len(args.runs)} logs; Ctrl-C ends it, the page stays")
    before = None
    while True:
        changes = last_changes(args.runs)
        if changes != before:
            sources, failed = write_page(args, path, library)
            before = changes
            for bad in failed:
                say(f"waiting: {bad['error']}")
            if sources and not failed and all((source.folder / "summary.json").is_file() for source in sources):
                write_text(path, make_page(sources, failed, library, args.max_mb))
                return
        time.sleep(args.watch)


def run(argv: list[str]) -> int:
    """Do what a command line says and return the exit code."""
    args = parse_flags(command_line(), argv)
    need(args.watch == 0 or args.watch >= 1, f"got --watch {args.watch:g}; expected seconds, 1 or more, or 0 for once")
    need(args.max_mb > 0, f"got --max_mb {args.max_mb:g}; expected a size above 0; try 5")
    path, library = output_of(args), plot_library()
    if args.watch:
        watch(args, path, library)
        tell(f"page {path}")
        return 0
    sources, failed = write_page(args, path, library)
    for bad in failed:
        print(f"error: {bad['error']}", file=sys.stderr)
    if not sources:
        raise UserError(f"got nothing that can be read; {path} is not written")
    tell(f"page {path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 2 if failed else 0


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    try:
        return run(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(
            f"error: got {error}; expected to read the logs and to write the page; mend it and try again",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        say("stopped; the page is as it was last written")
        return 130


if __name__ == "__main__":
    sys.exit(main())
