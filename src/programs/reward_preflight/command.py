"""The command line."""

import argparse
import sys
import time
from pathlib import Path

from parts.foundation.messages import UserError, need, say, suggest
from parts.foundation.settings import parse_flags
from parts.rewards.reward_forms import full_spec
from programs.reward_preflight.environment_preflight import EnvironmentPreflight
from programs.reward_preflight.environment_process import environment_process, serve
from programs.reward_preflight.model_preflight import model_preflight
from programs.reward_preflight.policies import POLICIES
from programs.reward_preflight.preflight import Preflight
from programs.reward_preflight.probes import PROBES, PROFILES, number_of
from programs.reward_preflight.report import (
    list_library,
    print_environment_report,
    print_json,
    print_report,
    score_file,
)
from programs.reward_preflight.reward_process import reward_process
from programs.reward_preflight.rows_and_gold import load_rows
from programs.reward_preflight.scoring import TOKEN_CHARACTERS

LIBRARY = str(Path(__file__).resolve().parent.parent / "examples" / "reward_functions_library.py")
# flags that have no effect in other modes
OF_MODES = {
    "environment": ("max_turns", "tool_timeout", "policy"),
    "model": (
        *("samples_per_prompt", "temperature", "precision", "max_prompt_tokens", "pass_low", "pass_high"),
        *("chat_template", "chat_template_kwargs"),
    ),
}
NOT_OF_MODES = {
    "environment": ("profile", "group_size", "chat"),
    "model": ("answer_column", "gold_column", "gold_template", "profile", "allow", "timeout_s", "completion_column"),
}
RUN_CHECKS = "leaving it out: the trainers check it before they start"
REMOVED = {  # flags of earlier versions, and what takes their place
    "samples": "--model M, or --score FUNCTION --data FILE for the scores of completions that you have",
    "max_zero_std": "--model M, whose verdict goes by the groups with signal",
    "max_characters": "--max_new_tokens N, 4 characters each",
    "max_conversation_tokens": "--max_turns N and --max_new_tokens N, for a turn",
    "library": "FILE.py:function, or --list FILE.py",
    **dict.fromkeys(("full_share", "min_recall"), "--full_score SCORE, or other gold answers"),
    **dict.fromkeys(("tokenizer", "tool_format"), RUN_CHECKS),
    "tool_characters": "leaving it out: results of tools are cut at 8,000 characters",
    **dict.fromkeys(("reward_timeout", "reward_concurrency", "reward_retries"), "--timeout_s S, for a call as a whole"),
}


def share_of(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    known = [*PROBES, *POLICIES]
    if name not in known or number_of(value) is None:
        names = f"NAME one of {', '.join(known)}{suggest(name, known)}"
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=SHARE such as empty=0.4, {names}")
    return name, float(value)


def make_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    usage = "%(prog)s [--flag value ...]    (--help has all flags)"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=raw, allow_abbrev=False)

    def flag(name: str, help: str, metavar: str | None, default=None, **options) -> None:
        help += f" (default: {default})" if default else ""
        kind = {} if default is None or isinstance(default, str) else {"type": type(default)}
        names = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
        parser.add_argument(*names, help=help, metavar=metavar, default=default, **kind | options)

    flag("list", "list a library's functions and presets", "FILE.py", nargs="?", const=LIBRARY)
    flag("score", "score the rows' own completions: FILE.py:function or a name of --list", "FN")
    flag("reward", "check a reward: FILE.py:function[*weight] or a name, repeatable", "FN", action="append")
    flag("environment", "check an environment; --reward adds to what it pays", "FILE.py:CLASS")
    flag("model", "sample a model, folder or hub id: how often it passes, and whether RL fits", "MODEL")
    flag("data", "rows: JSONL, JSON, CSV or parquet file, or hub id[:config][@split]", "FILE")
    flag("group_size", "completions per prompt in the run", "G", 8)
    tokens = "longest completion of the run (TRL: max_completion_length); probes are cut there, at 4 characters a token"
    flag("max_new_tokens", tokens, "N", type=int)
    flag("prompt_column", "column with the prompt", "NAME", "prompt")
    flag("completion_column", "column that --score scores", "NAME", "completion")
    gold = "column with the reference completion, or a conversation's answers (default: usual names)"
    flag("gold_column", gold, "NAME")
    answer = "column with the final answer, tried in the usual formats (default: usual names)"
    flag("answer_column", answer, "NAME")
    template = "reference completion, such as 'Answer: {answer}' or '\\boxed{answer}'; {NAME} is a column"
    flag("gold_template", template, "TEXT")
    full = "score of full marks (default: from the documented ranges, else gold's best, at least 1)"
    flag("full_score", full, "SCORE", type=float)
    kind = "what the reward pays for: answer, format (a wrong answer may be paid) or judge (grades that may vary)"
    flag("profile", kind, None, "answer", choices=[*PROFILES])
    allow = "share of gold's score that a probe may get, NAME=SHARE, repeatable"
    flag("allow", allow, "NAME=SHARE", type=share_of, action="append")
    flag("limit", "rows drawn from the data (default: 64; all with --score)", "N", 0)
    flag("timeout_s", "longest time for one call of a reward", "S", 30.0)
    flag("max_turns", "answers in a conversation with an environment", "N", 8)
    flag("tool_timeout", "seconds for an answer's tool calls together, or for a reply", "S", 30.0)
    says = "gold's next answer in a conversation, (messages, tools, row) -> text or call"
    flag("policy", f"{says} (default: the column gold, or the answer)", "FILE.py:FN")
    flag("samples_per_prompt", "completions that --model samples of each prompt", "N", 16)
    flag("temperature", "temperature of --model's samples, as in the run", "T", 1.0)
    kinds = ["auto", "fp32", "bf16", "fp16"]
    flag(
        "precision",
        "precision of --model, as in the run; auto: bf16 if the GPU can",
        None,
        "auto",
        choices=kinds,
    )
    flag("max_prompt_tokens", "--model leaves out longer prompts", "N", 512)
    flag("pass_low", "--model: pass rate below which RL has too little to reinforce", "SHARE", 0.1)
    flag("pass_high", "--model: pass rate above which RL has little left to learn", "SHARE", 0.9)
    flag("chat_template", "FILE with a chat template for --model, in place of its own", "FILE", "")
    kwargs = 'JSON object for the chat template of --model, such as {"enable_thinking": false}'
    flag("chat_template_kwargs", kwargs, "JSON", "")
    parser.add_argument("--chat", action="store_true", help="the run has --chat: string prompts become user messages")
    flag("seed", "seed of the rows drawn", "N", 0)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)  # the reward's process
    return parser


def check_arguments(args) -> None:
    """Raise UserError for arguments that cannot work together; resolve the names of rewards."""
    names = [name for name in ("list", "score", "reward", "environment", "model") if getattr(args, name)]
    modes = [name for name in names if not (name == "reward" and (args.environment or args.model))]
    said = " and ".join(f"--{name}" for name in modes)
    known = "expected one of --list, --score, --reward, --environment, --model"
    need(len(modes) == 1, f"got {said or 'no mode'}; {known}")
    need(args.reward or not args.model, "got --model without --reward; expected a reward that scores its samples")
    need(args.list or args.data, f"got {said} without --data; expected rows; try --data FILE.jsonl")
    ranges = {"group_size": (2, 1e6), "limit": (0, 1e9), "timeout_s": (0.01, 1e6), "max_new_tokens": (1, 1e7)}
    ranges |= {"max_turns": (1, 1e4), "tool_timeout": (0.01, 1e6), "samples_per_prompt": (1, 1e6)}
    ranges |= {"temperature": (1e-3, 1e3), "max_prompt_tokens": (1, 1e7), "pass_low": (0, 1), "pass_high": (0, 1)}
    for name, (low, high) in ranges.items():
        value = getattr(args, name)
        fits = value is None or low <= value <= high
        need(fits, f"got {name} {value}; expected {low:g} to {high:g}; try --{name} {low:g}")
    usual = make_parser().parse_args([])
    for mode in OF_MODES:
        used = bool(getattr(args, mode))
        for name in NOT_OF_MODES[mode] if used else OF_MODES[mode]:
            idle = getattr(args, name) != getattr(usual, name)
            got = f"got --{name} {'with' if used else 'without'} --{mode}, where it has no effect"
            need(not idle, f"{got}; expected it left out" + ("" if used else f", or --{mode} too"))
    specs = args.reward or ([args.score] if args.score else [])
    args.reward = [full_spec(spec, LIBRARY) for spec in specs]
    args.allow = dict(args.allow or [])
    args.limit_characters = TOKEN_CHARACTERS * args.max_new_tokens if args.max_new_tokens else None


def preflight(args) -> int:
    """--reward, --environment: all checks on rows drawn from the data."""
    started, rows = time.perf_counter(), load_rows(args, args.limit or 64)
    if args.environment:
        with environment_process(args, rows) as process:
            report, show = EnvironmentPreflight(args, rows, process).run(), print_environment_report
    else:
        with reward_process(args, rows) as process:
            report, show = Preflight(args, rows, process).run(), print_report
    report["seconds"] = round(time.perf_counter() - started, 1)
    (print_json if args.json else show)(report)
    return 0 if report["ready"] else 1


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(make_parser(), argv, removed=REMOVED)
    if args.serve is not None:
        serve(args.serve)
        return 0
    try:
        check_arguments(args)
        modes = {"model": model_preflight, "list": list_library, "score": score_file}
        return next((run for name, run in modes.items() if getattr(args, name)), preflight)(args)
    except UserError as error:
        say(f"error: {error}")
        return error.code


if __name__ == "__main__":
    sys.exit(main())
