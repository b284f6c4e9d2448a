"""The command line."""

import argparse
import json
import keyword
import math
import re
import shutil
import sys
from pathlib import Path

from parts.foundation.messages import Help, UserError, need, say, tell
from parts.foundation.settings import parse_flags
from parts.rewards.reward_forms import full_spec, spec_parts
from programs.create_reward_template.assembly import ADAPTERS, CONTRACT, check_column, names_in
from programs.create_reward_template.code_files import (
    OF_TRL,
    code_reward,
    read_signature,
    sandbox_source,
    tried_on_programs,
    with_signature,
)
from programs.create_reward_template.ports import compared, ported
from programs.create_reward_template.tasks import SCRIPTS, TASKS, new_reward, preflighted, tested

WITH_GOLD = ("math", "final_number", "code", "passes_tests", "qa", "llm_judge")
CALLED_BY_TRL = (  # a test compares it with what TRL does
    "{name}(prompts=, completions=, completion_ids=, COLUMN= for each other column, trainer_state=, log_extra=, "
    "log_metric=): all but the last three are lists over the samples; a completion is "
    "[{{'role': 'assistant', 'content': text}}] where its prompt is chat messages, else a text; it returns a number, "
    "or None for not counted, for each"
)


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """The flags; `only_for` has {flag: (the tasks that it is for, its default)}."""
    usage = "%(prog)s [--flag value ...]    (--help has all flags)"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=Help, allow_abbrev=False)
    only_for, code, judged, port = {}, ("passes_tests",), ("code", "passes_tests"), ("--from",)

    def flag(name: str, help: str, tasks: tuple[str, ...] = (), default=None, **options) -> None:
        shown = " ".join(default) if isinstance(default, list) else default
        parser.add_argument(f"--{name}", help=help + (f" (default: {shown})" if shown else ""), **options)
        if tasks:
            only_for[name] = tasks, default

    flag("task", "what to pay for", choices=[*TASKS, "custom"], metavar="{" + ",".join(TASKS) + "}")
    flag("from", "port this reward instead: FILE.py:function[*weight]", metavar="SPEC", dest="source")
    both = "trl, verl or both (default: both; with --from the other contract)"
    flag("for", both, dest="target", choices=["trl", "verl", "both"])
    inline = "--from to verl: the shortest port, with the function inside"
    flag("inline", inline, port, action="store_true")
    flag("data", "test the new reward on these rows: JSONL, JSON, CSV or parquet", metavar="FILE")
    flag("prompt_column", "--data: column with the prompt (default: prompt)", metavar="NAME")
    flag("output", "file to write", metavar="FILE.py", type=Path)
    flag("force", "replace an existing file", action="store_true")
    flag("name", "TRL's function, and its metric (default: TASK_reward, with --from the function's)", metavar="NAME")
    gold = "column of the gold answer (default: answer; code, passes_tests: tests; --from: what it reads)"
    flag("gold_column", gold, (*WITH_GOLD, *port), metavar="NAME")
    signature = "how the reward is called: NAME(completions, COLUMN, …) or NAME(program, COLUMN)"
    flag("signature", signature, WITH_GOLD, metavar="TEXT")
    one_file = "passes_tests: with the sandbox inside, needs only the standard library"
    flag("one_file", one_file, code, action="store_true")
    pay = "code, passes_tests: 1 for all tests, or the fraction that passes"
    flag("pay", pay, judged, "all", choices=["all", "fraction"])
    per = "what limits are for; call: each in a process of its own (default: test; call with --pay fraction)"
    flag("per", f"code, passes_tests: {per}", judged, choices=["call", "test", "completion"])
    flag("timeout_s", "code, passes_tests: seconds", judged, 3.0, type=float, metavar="S")
    flag("memory_mb", "code, passes_tests: MiB that a program may add", judged, 512, type=int, metavar="MB")
    no_fence = "passes_tests: a completion without a code fence is a program, or has none"
    flag("no_fence", no_fence, code, "whole", choices=["whole", "empty"])
    stop = "code, passes_tests: stop testing a program when one test fails"
    flag("stop_at_first_failure", stop, judged, action="store_true")
    flag("schema", "json_schema: the JSON Schema", ("json_schema",), metavar="FILE")
    exact = "json_schema: properties that must have the row's value, from columns of these names"
    flag("exact", exact, ("json_schema",), nargs="+", metavar="KEY")
    flag("tags", "format: the tags, in order", ("format",), ["think", "answer"], nargs="+", metavar="TAG")
    form = "--from a TRL reward: the form of its completions"
    flag("completions", form, port, "messages", choices=["messages", "text"])
    args = parse_flags(parser, argv)
    args.only_for = only_for
    return args


def taken_names(args) -> set[str]:
    """Names that the written file uses itself."""
    if args.source:
        return {"score", "compute_score"}
    if args.one_file:
        return names_in([sandbox_source(), *TASKS["passes_tests"].texts])
    alone = args.task in ("final_number", "passes_tests")
    return names_in([*TASKS[args.task].texts, *(() if alone else (CONTRACT, ADAPTERS))])


def check_flags(args) -> None:
    """Raise UserError for what cannot work together; fill in the defaults."""
    need(args.task != "custom", "got --task custom, which was removed; try --task qa, and edit its `score`")
    need(bool(args.task) != bool(args.source), "got neither or both of --task and --from; try --task math")
    need(args.output, "got no --output; expected --output FILE.py")
    need(args.data or not args.prompt_column, "got --prompt_column without --data; expected them together")
    need(args.task or not args.prompt_column, "got --prompt_column with --from, which reads no prompt column")
    args.source = full_spec(args.source) if args.source else None
    kind = args.task or "--from"
    for name, (kinds, default) in args.only_for.items():
        given = getattr(args, name)
        fits = kind in kinds or given is None or given is False
        need(fits, f"got --{name} with {kind}; expected it with {' or '.join(kinds)}")
        setattr(args, name, default if given is None else given)
    for name in ("timeout_s", "memory_mb"):
        need(0 < getattr(args, name) < math.inf, f"got --{name} {getattr(args, name)}; expected a number above 0")
    args.per = args.per or ("call" if args.pay == "fraction" else "test")
    if args.signature:
        alone = not (args.name or args.gold_column) and args.target != "verl"
        need(alone, "got --signature with --name, --gold_column or --for verl; expected it in their place, for TRL")
        args.name, args.answers, args.parameters = read_signature(args.signature)
        args.gold_column = next(x for x in args.parameters if x not in (args.answers, *OF_TRL))
    if args.task:
        args.name = args.name or f"{args.task}_reward".replace("llm_", "")
        args.target = args.target or ("trl" if kind == "passes_tests" else "both")
        judged = args.target != "verl" or not args.data
        need(judged, "got --data with --for verl; expected --for both or trl")
    else:
        name = spec_parts(args.source)[1].replace("compute_score", "verl_reward")
        args.name = args.name or (name.lower() if name.isupper() else name)
    trl_only = kind != "passes_tests" or args.target == "trl"
    need(trl_only, f"got --for {args.target} with passes_tests; expected trl; try --task code")
    fine = args.name.isidentifier() and not keyword.iskeyword(args.name)
    flag = "--signature with the name" if args.signature else "--name"
    taken = args.name in taken_names(args) and not args.inline
    need(fine and not taken, f"got {flag} {args.name!r}; expected a Python name that the file does not use itself")
    if args.gold_column:
        check_column(args.gold_column, "--gold_column")
    need(args.schema or kind != "json_schema", "got --task json_schema without a schema; try --schema FILE")
    for tag in args.tags:
        need(re.fullmatch(r"\w+", tag), f"got the tag {tag!r}; expected a word such as think")
    need(len({*args.tags}) == len(args.tags), f"got --tags {' '.join(args.tags)}; expected each once")
    got, folder = f"got --output {args.output}", args.output.parent
    need(args.output.suffix == ".py", f"{got}; expected a name ending in .py")
    name = args.output.name
    need(args.output.stem not in sys.stdlib_module_names, f"{got}, a module of Python's own; try --output my_{name}")
    need(folder.is_dir(), f"{got}; expected a folder that exists; try mkdir -p {folder}")
    need(not args.output.is_dir(), f"{got}, a folder; expected the name of a file")
    need(args.force or not args.output.exists(), f"{got}, which exists; expected a new name; try --force")
    args.name += "_batch" if args.signature else ""


def copy_helper(name: str, folder: Path) -> dict:
    """Put NAME.py of the bundle beside the output, unless there is one; say what was done."""
    target, original = folder / f"{name}.py", SCRIPTS / f"{name}.py"
    if target.is_file():
        if original.is_file() and target.read_bytes() != original.read_bytes():
            say(f"note: {target} is kept; it differs from {original}")
        return {"helper": str(target), "copied": False}
    need(original.is_file(), f"got no {original}; expected it beside this script; try copying it to {folder}")
    shutil.copyfile(original, target)
    return {"helper": str(target), "copied": True}


def write_reward(args, text: str) -> dict:
    """Write the file and the helper that it needs, try it; return what to say of it."""
    path = args.output
    report = {"wrote": str(path), "lines": len(text.splitlines()), "for": args.target}
    if args.task not in (None, "final_number", "passes_tests"):
        report["test"] = f"{Path(sys.executable).name} {path} --test"
    if args.target != "verl":
        report |= {"trl": f"{path}:{args.name}", "trl_calls_it": CALLED_BY_TRL.format(name=args.name)}
    if args.target != "trl":
        keys = "reward.custom_reward_function"
        report["verl"] = [f"{keys}.path={path}", f"{keys}.name=compute_score"]
    if args.task and TASKS[args.task].helper and not args.one_file:
        report |= copy_helper(TASKS[args.task].helper, path.resolve().parent)
    before = path.read_bytes() if path.exists() else None
    path.write_text(text, encoding="utf-8")
    try:
        if args.task == "json_schema":
            report |= {"paid_in_full": args.gold_template, "self_test": tested(path)}
        if args.task == "passes_tests":
            report["tried"] = tried_on_programs(args)
        if args.source:
            report["tried"] = compared(args)
        elif args.data:
            programs, rows = report.get("tried", {}), preflighted(args)
            report["tried"] = programs | rows | {"ready": rows["ready"] and programs.get("ready", True)}
    except UserError:
        path.unlink() if before is None else path.write_bytes(before)
        if report.get("copied"):
            Path(report["helper"]).unlink()
        raise
    return report


def main(argv: list[str] | None = None) -> int:
    args = read_flags(argv)
    try:
        check_flags(args)
        if args.task == "passes_tests":
            text = code_reward(args)
        else:
            text = new_reward(args) if args.task else ported(args)
        report = write_reward(args, with_signature(text, args) if args.signature else text)
    except UserError as error:
        say(f"error: {error}")
        return error.code
    except OSError as error:
        say(f"error: got {error}; expected a folder to write to; try another --output")
        return 2
    tell(json.dumps(report, indent=2))
    return 0 if report.get("tried", {}).get("ready", True) else 1


if __name__ == "__main__":
    sys.exit(main())
