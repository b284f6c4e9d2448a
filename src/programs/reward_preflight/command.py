"""The command line."""

import argparse
import sys
import time

from parts.foundation.bundle import EMBEDDED_REWARDS
from parts.foundation.messages import Help, UserError, need, say, suggest
from parts.foundation.settings import parse_flags
from parts.rewards.reward_forms import full_spec
from programs.reward_preflight.model_preflight import model_preflight
from programs.reward_preflight.preflight import Preflight
from programs.reward_preflight.probes import PROBES, PROFILES, number_of
from programs.reward_preflight.report import list_library, print_json, print_report
from programs.reward_preflight.reward_process import OwnProcess, serve
from programs.reward_preflight.rows_and_gold import load_rows
from programs.reward_preflight.scoring import TOKEN_CHARACTERS

BOTH, CALLED, SAMPLED = ("reward", "model"), ("reward",), ("model",)
PRECISIONS = ["auto", "fp32", "bf16", "fp16"]
FLAGS = {  # name: (help, placeholder, default or its type, bounds or choices, modes in which it has an effect)
    "group_size": ("completions per prompt in the run", "G", 8, (2, 1e6), SAMPLED),
    "max_new_tokens": ("longest completion of the run; cuts probes, at 4 characters a token", "N", int, (1, 1e7), BOTH),
    "prompt_column": ("column with the prompt", "NAME", "prompt", None, BOTH),
    "gold_column": ("column with the reference completion", "NAME", str, None, CALLED),
    "answer_column": ("column with the final answer, tried in the usual formats", "NAME", str, None, CALLED),
    "gold_template": ("reference completion, such as 'Answer: {answer}'; {NAME}: a column", "TEXT", str, None, CALLED),
    "full_score": ("score of full marks (default: by documented ranges, else gold's best)", "SCORE", float, None, BOTH),
    "profile": ("pays for the answer, the form, or a judge's grades", None, "answer", [*PROFILES], CALLED),
    "limit": ("rows drawn from the data (default: 64, with --model 32)", "N", int, (1, 1e9), BOTH),
    "timeout_s": ("longest time for one call of a reward", "S", 30.0, (0.01, 1e6), CALLED),
    "budget_s": ("time for all checks; a slow reward gets fewer rows", "S", float, (1, 1e6), CALLED),
    "temperature": ("temperature of --model's samples, as in the run", "T", 1.0, (1e-3, 1e3), SAMPLED),
    "precision": (
        "precision of --model, as in the run; auto: bf16 if the GPU supports it",
        None,
        "auto",
        PRECISIONS,
        SAMPLED,
    ),
    "max_prompt_tokens": ("--model leaves out longer prompts", "N", 512, (1, 1e7), SAMPLED),
    "chat_template": ("FILE with a chat template to use instead of --model's", "FILE", "", None, SAMPLED),
    "chat_template_kwargs": ('JSON for --model\'s template, as {"enable_thinking": false}', "JSON", "", None, SAMPLED),
    "seed": ("seed of the rows drawn", "N", 0, None, BOTH),
}


def share_of(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in PROBES or number_of(value) is None:
        names = f"NAME one of {', '.join(PROBES)}{'' if name in PROBES else suggest(name, [*PROBES])}"
        raise argparse.ArgumentTypeError(f"got {text!r}; expected NAME=SHARE such as empty=0.4, {names}")
    return name, float(value)


def make_parser() -> argparse.ArgumentParser:
    usage = "%(prog)s [--flag value ...]    (--help has all flags)"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=Help, allow_abbrev=False)

    def flag(name: str, help: str, metavar: str | None = None, **options) -> None:
        default = options.get("default")
        help += f" (default: {default})" if default else ""
        parser.add_argument(f"--{name}", help=help, metavar=metavar, **options)

    flag("list", "list a library's functions and presets", "FILE.py", nargs="?", const=EMBEDDED_REWARDS)
    flag("reward", "check a reward: FILE.py:function[*weight] or a name, repeatable", "FN", action="append")
    flag("model", "sample a model, folder or hub id: how often it passes, and whether RL fits", "MODEL")
    flag("data", "rows: JSONL, JSON, CSV or parquet file, or hub id[:config][@split]", "FILE")
    for name, (about, metavar, default, limits, _) in FLAGS.items():
        kind = {"type": default} if isinstance(default, type) else {"type": type(default), "default": default}
        flag(name, about, metavar, **kind, choices=limits if isinstance(limits, list) else None)
    allow = "share of gold's score that a probe may get, NAME=SHARE, repeatable"
    flag("allow", allow, "NAME=SHARE", type=share_of, action="append")
    parser.add_argument("--chat", action="store_true", help="the run has --chat: string prompts become user messages")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)  # for OwnProcess
    return parser


def check_arguments(args) -> None:
    """Raise UserError for arguments that do not fit together; resolve names of rewards, and --max_new_tokens."""
    names = [name for name in ("list", *BOTH) if getattr(args, name)]
    modes = [name for name in names if not (name == "reward" and args.model)]
    given = " and ".join(f"--{name}" for name in modes)
    expected = "expected one of --list, --reward, --model"
    need(len(modes) == 1, f"got {given or 'no mode'}; {expected}")
    need(args.reward or not args.model, "got --model without --reward; expected a reward that scores its samples")
    need(args.list or args.data, f"got {given} without --data; expected rows; try --data FILE.jsonl")
    defaults, mode = make_parser().parse_args([]), modes[0]
    for name, (*_, limits, fits) in (FLAGS | {"chat": (None, BOTH)}).items():
        value = getattr(args, name)
        if isinstance(limits, tuple) and value is not None:
            low, high = limits
            need(low <= value <= high, f"got {name} {value}; expected {low:g} to {high:g}; try --{name} {low:g}")
        idle = mode in BOTH and mode not in fits and value != getattr(defaults, name)
        need(not idle, f"got --{name} with --{mode}, where it has no effect; expected it with --{' or --'.join(fits)}")
    args.reward = [full_spec(spec) for spec in args.reward or []]
    args.allow = dict(args.allow or [])
    args.limit_characters = TOKEN_CHARACTERS * args.max_new_tokens if args.max_new_tokens else None


def preflight(args) -> int:
    """--reward: run all checks on rows drawn from the data; returns the exit code."""
    started, rows = time.perf_counter(), load_rows(args, args.limit or 64)
    with OwnProcess(args.reward, rows, args.timeout_s) as process:
        report = Preflight(args, rows, process).run()
    report["seconds"] = round(time.perf_counter() - started, 1)
    (print_json if args.json else print_report)(report)
    return 0 if report["ready"] else 1


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(make_parser(), argv)
    if args.serve is not None:
        serve(args.serve)
        return 0
    try:
        check_arguments(args)
        return (model_preflight if args.model else list_library if args.list else preflight)(args)
    except UserError as error:
        say(f"error: {error}")
        return error.code


if __name__ == "__main__":
    sys.exit(main())
