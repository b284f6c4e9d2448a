"""The command line."""

import argparse
import json
import keyword
import math
import re
import shutil
import sys
from pathlib import Path

from parts.foundation.messages import UserError, need, say, tell
from parts.foundation.settings import parse_flags
from parts.rewards.reward_forms import full_spec
from programs.create_reward_template.code_trial import passes_tests_reward, tried_on_programs
from programs.create_reward_template.new_reward import new_reward
from programs.create_reward_template.ports import ported
from programs.create_reward_template.recipes import DEFAULT_RULES, HELPERS, TASKS
from programs.create_reward_template.rubric import check_column
from programs.create_reward_template.short import compared, final_number_reward, inlined, preflighted, tested

RUBRIC = "You grade one answer to a task, from 0 (useless or wrong) to 10 (correct, complete and clear)."
ONLY_FOR = {  # flag -> the tasks that it is for
    "tags": ("format",),
    **dict.fromkeys(("schema", "exact", "partial"), ("json_schema",)),
    "rule": ("custom",),
    "combine": ("custom",),
    **dict.fromkeys(("base_url", "judge_model", "rubric"), ("llm_judge",)),
    "completions": ("--from",),
    "weights": ("--from",),
    "data_source": ("--from",),
    "inline": ("--from",),
    "gold_column": ("math", "final_number", "code", "passes_tests", "qa", "llm_judge", "--from"),
    "data": (*(task for task in TASKS if task != "passes_tests"), "--from"),
}
DEFAULTS = {
    "tags": ["think", "answer"],
    "rule": DEFAULT_RULES,
    "combine": "gated",
    "rubric": RUBRIC,
    "base_url": "http://localhost:8000/v1",
    "judge_model": "judge",
    "completions": "messages",
    "data_source": "data",
}


CALLED_BY_TRL = (  # a test compares it with what TRL does
    "{name}(prompts=, completions=, completion_ids=, COLUMN= for each other column, trainer_state=, log_extra=, "
    "log_metric=): all but the last three are lists over the samples; a completion is "
    "[{{'role': 'assistant', 'content': text}}] where its prompt is chat messages, else a text; it returns a number, "
    "or None for not counted, for each"
)


def template_parser() -> argparse.ArgumentParser:
    """The command line; flags work with `_` and `-`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--flag value ...]    (--help has all flags)",
        description=__doc__,
        formatter_class=raw,
        allow_abbrev=False,
    )

    def flag(name: str, help: str, **options) -> None:
        default = DEFAULTS.get(name)
        default = " ".join(default) if isinstance(default, list) else default
        text = help + (f" (default: {default})".replace("%", "%%") if default else "")
        parser.add_argument(*dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]), help=text, **options)

    flag("task", "what to pay for", choices=[*TASKS])
    flag("from", "port this reward instead: FILE.py:function[*weight]", metavar="SPEC", dest="source")
    flag(
        "for",
        "trl, verl or both (default: both; with --from the other contract)",
        dest="target",
        choices=["trl", "verl", "both"],
    )
    flag(
        "weights",
        "--from a list: a number for each function, or a list's name in the same file",
        nargs="+",
        metavar="W",
    )
    flag("inline", "--from to verl: the shortest port, with the function inside", action="store_true", default=None)
    flag("data", "try what was written on these rows: JSONL, JSON, CSV or parquet", metavar="FILE")
    flag("prompt_column", "--data: column with the prompt (default: prompt)", metavar="NAME")
    flag("output", "file to write", metavar="FILE.py")
    flag("print", "print the file on stdout instead", action="store_true", dest="to_stdout")
    flag("force", "replace a file that is there", action="store_true")
    flag("name", "TRL's function, and its metric (default: TASK_reward, with --from the function's)", metavar="NAME")
    flag(
        "gold_column",
        "column of the gold answer (default: answer; code, passes_tests: tests; --from: what it reads)",
        metavar="NAME",
    )
    flag("schema", "json_schema: the JSON Schema", metavar="FILE")
    flag(
        "exact", "json_schema: properties whose value is the row's, in columns of these names", nargs="+", metavar="KEY"
    )
    half = "json_schema: half the share of properties that hold, for JSON that the schema refuses"
    flag("partial", half, action="store_true", default=None)
    flag("tags", "format: the tags, in order", nargs="+", metavar="TAG")
    flag("rule", "custom: KIND[:ARGUMENT][*WEIGHT], repeatable", action="append", metavar="RULE")
    flag("combine", "custom: gated pays 0 unless the first rule holds", choices=["gated", "mean"])
    flag("base_url", "llm_judge: endpoint", metavar="URL")
    flag("judge_model", "llm_judge: the model's name there", metavar="NAME")
    flag("rubric", "llm_judge: what to grade by, from 0 to 10", metavar="TEXT")
    flag("completions", "--from a TRL reward: what it is given", choices=["messages", "text"])
    flag("data_source", "--from a compute_score: verl's data_source", metavar="NAME")
    flag(
        "example",
        'row for the self-test, repeatable: \'{"completion": "…", "answer": "…", "score": 1}\'',
        action="append",
        metavar="JSON",
    )
    return parser


def read_example(text: str) -> dict:
    """The row of an --example."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"got --example {text!r}: {error}; expected a JSON object") from None
    fine = isinstance(row, dict) and isinstance(row.get("completion"), str)
    need(fine, f"got --example {text!r}; expected a JSON object with completion, columns, and score if it is known")
    number = row.get("score") is None or (isinstance(row["score"], int | float) and math.isfinite(row["score"]))
    need(number, f"got --example with the score {row.get('score')!r}; expected a number or null")
    return row


def check_flags(args) -> None:
    """Raise UserError for what cannot work together; fill in the defaults."""
    need(bool(args.task) != bool(args.source), "got neither or both of --task and --from; expected one of them")
    need(args.output or args.to_stdout, "got no --output; expected --output FILE.py or --print")
    need(not (args.output and args.to_stdout), "got --output and --print; expected one of them")
    need(not (args.force and args.to_stdout), "got --force and --print; expected --force with --output")
    need(not (args.data and args.to_stdout), "got --data and --print; expected --data with --output")
    need(args.data or not args.prompt_column, "got --prompt_column without --data; expected them together")
    need(not (args.inline and args.prompt_column), "got --prompt_column with --inline, which reads no prompt")
    args.source = full_spec(args.source) if args.source else None
    kind = args.task or "--from"
    for name, kinds in ONLY_FOR.items():
        fits = kind in kinds or getattr(args, name) is None
        need(fits, f"got --{name} with {kind}; expected it with {' or '.join(kinds)}")
        if getattr(args, name) is None:
            setattr(args, name, DEFAULTS.get(name))
    args.example = [read_example(text) for text in args.example or []]
    if args.task:
        args.target = args.target or ("trl" if args.task == "passes_tests" else "both")
    named = args.name or (f"{args.task}_reward".replace("llm_", "") if args.task else "")
    if args.source and not args.name:
        named = args.source.partition("*")[0].rpartition(":")[2]
        named = "verl_reward" if named == "compute_score" else named
    fine = named.isidentifier() and not keyword.iskeyword(named)
    need(fine and named not in ("score", "compute_score"), f"got --name {named!r}; expected another Python name")
    args.name = named
    if args.gold_column:
        check_column(args.gold_column, "--gold_column")
    need(args.schema or kind != "json_schema", "got --task json_schema without a schema; try --schema FILE")
    for tag in args.tags if args.task == "format" else []:
        need(re.fullmatch(r"\w+", tag), f"got the tag {tag!r}; expected a word such as think")
    need(len({*args.tags}) == len(args.tags), f"got --tags {' '.join(args.tags)}; expected each once")
    need(args.base_url.startswith(("http://", "https://")), f"got --base_url {args.base_url!r}; expected http://…/v1")


def copy_helper(name: str, folder: Path, beside: bool = False) -> dict:
    """Put NAME.py of the bundle beside the output, unless the file is found from there; say what was done."""
    target, original = folder / f"{name}.py", HELPERS / f"{name}.py"
    places = (target, folder / "scripts" / target.name, folder.parent / "scripts" / target.name)
    found = next((place for place in places[: 1 if beside else 3] if place.is_file()), None)
    if found:
        differs = original.is_file() and found.read_bytes() != original.read_bytes()
        if differs:
            say(f"note: {found} is kept; it differs from {original}")
        return {"helper": str(found), "copied": False}
    need(original.is_file(), f"got no {original}; expected it beside this script; try copying it to {folder}")
    shutil.copyfile(original, target)
    return {"helper": str(target), "copied": True}


def text_of(args) -> str:
    """The text of the file to write."""
    if args.inline:
        return inlined(args)
    if args.task == "final_number":
        return final_number_reward(args)
    if args.task == "passes_tests":
        return passes_tests_reward(args)
    text = new_reward(args) if args.task else ported(args)
    judged = args.target != "verl" or not args.data
    need(judged, "got --data with a reward for verl alone; expected --for both or trl, or --inline")
    return text


def write_reward(args, text: str) -> dict:
    """Write the file and the helper that it needs, try it; return what to say of it."""
    path = Path(args.output)
    report = {"wrote": str(path), "lines": len(text.splitlines()), "for": args.target}
    if args.inline:
        report["tried"] = compared(args, text)
    elif args.task not in ("final_number", "passes_tests"):
        report["test"] = f"{Path(sys.executable).name} {path} --test"
    if args.target != "verl":
        report["trl"] = f"{path}:{args.name}"
        report["trl_calls_it"] = CALLED_BY_TRL.format(name=args.name)
    if args.target != "trl":
        keys = "reward.custom_reward_function"
        report["verl"] = [f"{keys}.path={path}", f"{keys}.name=compute_score"]
    helper = TASKS[args.task].helper if args.task else ""
    if helper:
        report |= copy_helper(helper, path.resolve().parent, beside=args.task == "passes_tests")
    before = path.read_bytes() if path.exists() else None
    path.write_text(text, encoding="utf-8")
    try:
        if args.data and not args.inline:
            report["tried"] = preflighted(args)
        if args.task == "json_schema":
            report |= {"paid_in_full": args.gold_template, "self_test": tested(path)}
        if args.task == "passes_tests":
            report["tried"] = tried_on_programs(args)
    except UserError:
        path.unlink() if before is None else path.write_bytes(before)
        if report.get("copied"):
            Path(report["helper"]).unlink()
        raise
    return report


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = template_parser()
    args = parse_flags(parser, argv)
    try:
        check_flags(args)
        if args.output:
            path = Path(args.output)
            need(path.suffix == ".py", f"got --output {path}; expected a name in .py")
            got, folder = f"got --output {path}", path.parent
            need(folder.is_dir(), f"{got}; expected a folder that exists; try mkdir -p {folder}")
            need(not path.is_dir(), f"{got}, a folder; expected the name of a file")
            need(args.force or not path.exists(), f"{got}, which exists; expected a new name; try --force")
        text = text_of(args)
        if args.to_stdout:
            tell(text, end="")
            if args.task and TASKS[args.task].helper:
                say(f"note: it needs {HELPERS / TASKS[args.task].helper}.py beside it")
        else:
            report = write_reward(args, text)
            tell(json.dumps(report, indent=2))
            return 0 if report.get("tried", {}).get("ready", True) else 1
    except UserError as error:
        say(f"error: {error}")
        return error.code
    except OSError as error:
        say(f"error: got {error}; expected a folder to write to; try another --output")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
