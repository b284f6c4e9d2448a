"""The command line."""

import argparse
import sys

from parts.foundation.messages import UserError, need, say, suggest
from parts.foundation.settings import parse_flags
from parts.rewards.reward_forms import full_spec
from programs.reward_preflight.environment_process import serve
from programs.reward_preflight.model_preflight import model_preflight
from programs.reward_preflight.modes import list_library, preflight, score_file
from programs.reward_preflight.policies import POLICIES
from programs.reward_preflight.probes import PROBES, PROFILES, number_of
from programs.reward_preflight.thresholds import LIBRARY, TOKEN_CHARACTERS


def share_of(text: str) -> tuple[str, float]:
    """Read NAME=SHARE of --allow."""
    name, _, value = text.partition("=")
    known = [*PROBES, *POLICIES]
    if name not in known or number_of(value) is None:
        names = f"NAME one of {', '.join(known)}{suggest(name, known)}"
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=SHARE such as empty=0.4, {names}")
    return name, float(value)


def environment_flags(flag) -> None:
    """The flags that go with --environment."""
    flag("max_turns", "answers in a conversation with an environment", type=int, default=8, metavar="N")
    flag(
        "tool_timeout",
        "seconds for an answer's tool calls together, or for a reply",
        type=float,
        default=30.0,
        metavar="S",
    )
    flag("tool_characters", "longer results of tools are cut", type=int, default=8000, metavar="N")
    says = "what gold says in a conversation, (messages, tools, row) -> text or call"
    flag("policy", f"{says} (default: the column gold, or the answer)", metavar="FILE.py:FN")
    flag("tokenizer", "model folder or hub id whose chat template is tried with the environment", metavar="MODEL")
    flag(
        "chat_template",
        "FILE with a chat template for --tokenizer or --model, in place of its own",
        default="",
        metavar="FILE",
    )
    flag(
        "chat_template_kwargs",
        'JSON object for that template, such as {"enable_thinking": false}',
        default="",
        metavar="JSON",
    )
    flag(
        "tool_format",
        "form of tool calls of --tokenizer (default: what its chat template shows)",
        default="",
        metavar="NAME",
    )


def marks_flags(flag) -> None:
    """The flags that say what has to be paid, and what must not be."""
    flag("full_score", "score of full marks (default: of the documented ranges, else 1)", type=float, metavar="SCORE")
    flag("full_share", "share of that score from which marks count as full", type=float, default=0.95, metavar="SHARE")
    flag("min_recall", "share of gold that must have full marks", type=float, default=0.95, metavar="SHARE")
    kind = "what the reward pays for: answer, format (a wrong answer may be paid) or judge (grades, that may vary)"
    flag("profile", f"{kind} (default: format where no score depends on the row)", choices=[*PROFILES])
    flag("allow", "share of gold's score that a probe may get, NAME=SHARE, repeatable", type=share_of, action="append")
    flag(
        "max_zero_std",
        "forecast of groups without spread above which it fails",
        type=float,
        default=0.9,
        metavar="SHARE",
    )


def model_flags(flag) -> None:
    """The flags that go with --model."""
    flag("samples_per_prompt", "completions that --model samples of each prompt", type=int, default=16, metavar="N")
    flag("temperature", "at which --model samples, as in the run", type=float, default=1.0, metavar="T")
    kinds, says = ["auto", "fp32", "bf16", "fp16"], "of --model, as in the run; auto: bf16 where the CUDA GPU can"
    flag("precision", says, choices=kinds, default="auto")
    flag("max_prompt_tokens", "longer prompts are left out by --model", type=int, default=512, metavar="N")
    flag("pass_low", "--model: pass rate below which RL finds too little", type=float, default=0.1, metavar="SHARE")
    flag("pass_high", "--model: pass rate above which RL has little to do", type=float, default=0.9, metavar="SHARE")


def make_parser() -> argparse.ArgumentParser:
    """The command line; flags work with `_` and `-`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--flag value ...]    (--help has all flags)",
        description=__doc__,
        formatter_class=raw,
        allow_abbrev=False,
    )

    def flag(name: str, help: str, **options) -> None:
        text = help + (f" (default: {options['default']})" if options.get("default") else "")
        parser.add_argument(*dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]), help=text, **options)

    flag("list", "list the library's functions and presets", action="store_true")
    flag("score", "score the rows' own completions: FILE.py:function or a name of --list", metavar="FN")
    flag("reward", "check a reward: FILE.py:function[*weight] or a name, repeatable", action="append", metavar="FN")
    flag("environment", "check an environment: FILE.py:Class; --reward adds to what it pays", metavar="FILE.py:CLASS")
    flag("model", "sample a model, folder or hub id: how often it passes, and whether RL fits", metavar="MODEL")
    flag("data", "rows: JSONL, JSON, CSV or parquet file, or hub id[:config][@split]", metavar="FILE")
    flag("samples", "your model's completions: rows of prompt or index, and completion or completions", metavar="FILE")
    flag("group_size", "completions per prompt in the run", type=int, default=8, metavar="G")
    tokens = "tokens a completion of the run may have; probes are cut there, at 4 characters a token"
    flag("max_new_tokens", f"{tokens} (TRL: max_completion_length)", type=int, metavar="N")
    flag("max_characters", "the same limit in characters, where 4 a token is wrong", type=int, metavar="N")
    flag("prompt_column", "column with the prompt", default="prompt", metavar="NAME")
    flag("completion_column", "column that --score scores", default="completion", metavar="NAME")
    flag(
        "gold_column",
        "column with the reference completion, or a conversation's answers (default: usual names)",
        metavar="NAME",
    )
    flag(
        "answer_column",
        "column with the final answer, tried in the usual formats (default: usual names)",
        metavar="NAME",
    )
    template = "reference completion, such as 'Answer: {answer}' or '\\boxed{answer}'; {NAME} is a column"
    flag("gold_template", template, metavar="TEXT")
    marks_flags(flag)
    flag("limit", "rows drawn from the data (default: 64; all with --score)", type=int, default=0, metavar="N")
    flag("timeout_s", "longest time for one call of a reward", type=float, default=30.0, metavar="SECONDS")
    flag("reward_timeout", "as in the run: one call of an async reward", type=float, default=600.0, metavar="SECONDS")
    flag("reward_concurrency", "as in the run: calls of async rewards at once", type=int, default=32, metavar="N")
    flag("reward_retries", "as in the run: further calls after a lost connection", type=int, default=2, metavar="N")
    environment_flags(flag)
    model_flags(flag)
    flag("chat", "the run has --chat: string prompts go through the chat template", action="store_true")
    flag("library", "file in which bare names are looked up", default=LIBRARY, metavar="FILE.py", dest="reward_library")
    flag("seed", "seed of the rows drawn", type=int, default=0, metavar="N")
    flag("json", "print one JSON object on stdout", action="store_true")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)  # the reward's process
    return parser


OF_ENVIRONMENTS = (
    "max_turns",
    "tool_timeout",
    "tool_characters",
    "policy",
    "tokenizer",
    "chat_template",
    "chat_template_kwargs",
    "tool_format",
)
OF_MODELS = ("samples_per_prompt", "temperature", "precision", "max_prompt_tokens", "pass_low", "pass_high")
NOT_OF_MODELS = (
    *("samples", "max_characters", "answer_column", "gold_column", "gold_template"),
    *("profile", "full_share", "min_recall", "allow", "max_zero_std", "timeout_s", "completion_column"),
)


def check_idle_flags(args) -> None:
    """Raise UserError for flags that do nothing in the mode that was chosen."""
    usual = make_parser().parse_args([])
    template = ("chat_template", "chat_template_kwargs") if args.model else ()  # a model's own, too
    of_environments = [name for name in OF_ENVIRONMENTS if name not in template]
    idle_beside = {
        "--environment": ("samples", "profile", "group_size", "max_zero_std", "chat")
        if args.environment
        else of_environments,
        "--model": NOT_OF_MODELS if args.model else OF_MODELS,
    }
    for mode, names in idle_beside.items():
        beside = "with" if getattr(args, mode[2:]) else "without"
        for name in names:
            idle = getattr(args, name) != getattr(usual, name)
            need(not idle, f"got --{name} {beside} {mode}; expected the other way")


def check_arguments(args) -> None:
    """Raise UserError for arguments that cannot work together; resolve the names of rewards."""
    names = [name for name in ("list", "score", "reward", "environment", "model") if getattr(args, name)]
    modes = [f"--{name}" for name in names if not (name == "reward" and (args.environment or args.model))]
    need(
        len(modes) == 1,
        f"got {' and '.join(modes) or 'no mode'}; expected one of --list, --score, --reward, --environment, --model",
    )
    need(args.reward or not args.model, "got --model without --reward; expected what its samples are scored by")
    need(args.list or args.data, f"got {modes[0]} without --data; expected rows; try --data FILE.jsonl")
    need(args.reward or not args.samples, f"got --samples with {modes[0]}; expected it with --reward")
    ranges = {"group_size": (2, 1e6), "limit": (0, 1e9), "timeout_s": (0.01, 1e6)}
    ranges |= {"max_new_tokens": (1, 1e7), "max_characters": (1, 1e8)}
    ranges |= {"max_turns": (1, 1e4), "tool_timeout": (0.01, 1e6), "tool_characters": (1, 1e9)}
    ranges |= {"reward_timeout": (0, 1e6), "reward_concurrency": (1, 1e6), "reward_retries": (0, 1e3)}
    ranges |= {"samples_per_prompt": (1, 1e6), "temperature": (1e-3, 1e3), "max_prompt_tokens": (1, 1e7)}
    shares = ("full_share", "min_recall", "max_zero_std", "pass_low", "pass_high")
    for name, (low, high) in {**ranges, **dict.fromkeys(shares, (0, 1))}.items():
        value = getattr(args, name)
        fits = value is None or low <= value <= high
        need(fits, f"got {name} {value}; expected {low:g} to {high:g}; try --{name} {low:g}")
    check_idle_flags(args)
    need(
        args.tokenizer or args.model or not (args.tool_format or args.chat_template or args.chat_template_kwargs),
        "got a setting of a chat template without --tokenizer; expected one; try --tokenizer MODEL",
    )
    specs = args.reward or ([args.score] if args.score else [])
    args.reward = [full_spec(spec, args.reward_library) for spec in specs]
    args.allow = dict(args.allow or [])
    if args.max_new_tokens and not args.max_characters:
        args.max_characters = TOKEN_CHARACTERS * args.max_new_tokens


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = make_parser()
    args = parse_flags(parser, argv)
    if args.serve is not None:
        serve(args.serve)
        return 0
    try:
        check_arguments(args)
        mode = model_preflight if args.model else list_library if args.list else score_file if args.score else preflight
        return mode(args)
    except UserError as error:
        say(f"error: {error}")
        return error.code


if __name__ == "__main__":
    sys.exit(main())
