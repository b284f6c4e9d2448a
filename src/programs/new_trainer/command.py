"""The command line."""

import argparse
import json
import shlex
import sys
from pathlib import Path

from parts.messages import UserError, need, say, tell
from parts.reward_forms import full_spec
from programs.new_trainer.pages import (
    OF_A_CHECK,
    OF_A_RUN,
    OWN,
    PAGES,
    as_flags,
    as_own,
    changes_of,
    named_by_flags,
    outline,
    page_parser,
    page_text,
    settings_of,
    with_change,
    with_default,
    with_file,
    with_own,
)
from programs.new_trainer.training import checked, prompts_of, time_left, trained


def new_trainer(args, rest: list[str]) -> tuple[int, dict]:
    """(exit code, report) of a command line."""
    source, theirs = page_text(args.kind), {flag: getattr(args, flag) for flag in OWN if getattr(args, flag)}
    for flag, spec in theirs.items():
        source = with_own(source, flag, spec)
    changes = [*args.change, *(name for name in named_by_flags(args.kind, rest) if name not in args.change)]
    for name in changes:
        source = with_change(source, args.kind, name)
    given = {k: x for k, x in vars(page_parser(args.kind, source).parse_args(rest)).items() if x is not None}
    need(args.file.endswith(".py"), f"got FILE {args.file}; expected a name in .py")
    folder = Path(args.file).resolve().parent
    need(folder.is_dir(), f"got FILE {args.file}; expected a folder that exists; try mkdir -p {folder}")
    fresh = args.force or not Path(args.file).exists()
    need(fresh, f"got FILE {args.file}, which exists; expected a new name; try --force")
    required = [name for name, setting in settings_of(source).items() if setting["default"] is None]
    missing = [f"--{name}" for name in required if name not in given]
    started = any(name in given for name in OF_A_RUN if not args.inline or name not in ("environment", "reward"))
    need(
        not (started and missing),
        f"got no {', '.join(missing)}; expected it for check and run; try --list, or leave out the others",
    )
    out = Path(given.get("out", ""))
    free = "out" not in given or not out.exists() or (out / "settings.json").is_file()
    need(free, f"got --out {out}, which exists and is no earlier run; expected a new folder")
    if given.get("reward"):
        given["reward"] = full_spec(given["reward"])
    own = {name: value for name, value in given.items() if name not in OF_A_RUN}
    for name, value in own.items():
        source = with_default(source, name, value)
    if args.inline:
        setting = next((name for name in ("environment", "reward") if name in given), None)
        need(setting, "got --inline without a reward or environment; expected one; try --reward FILE.py:function")
        source = with_file(source, setting, given.pop(setting))
    source = as_own(source, args.kind, args.file)
    Path(args.file).write_text(source, encoding="utf-8")
    report = {"wrote": args.file, "lines": len(source.splitlines()), "settings": own, "changes": changes}
    report |= {"own": theirs} if theirs else {}
    report["functions"] = outline(source)
    if not started:
        return 0, report
    left_out = [*args.leave_out, *["group_advantages"] * ("advantage" in theirs)]
    report["selfcheck"] = checked(args.file, as_flags(given, OF_A_CHECK), left_out)
    flags = as_flags(given, OF_A_RUN)
    report["command"] = shlex.join(["python", args.file, *flags])
    if report["selfcheck"]["failed"] or "out" not in given:
        return int(bool(report["selfcheck"]["failed"])), report
    flags = as_flags(given | time_left(given, report["selfcheck"]), OF_A_RUN)
    if given.get("eval_data"):
        held_out, known = prompts_of(given["eval_data"]), {*prompts_of(given["data"])}
        shared = sum(prompt in known for prompt in held_out)
        report["held_out"] = {"rows": len(held_out), "also_in_training": shared}
        if shared:
            say(
                f"warning: {shared} of {len(held_out)} held-out prompts are in {given['data']}, so are no held-out ones"
            )
    report["run"] = trained(args.file, flags, given["model"], out)
    lost = not report["run"].get("saved_model", {"loads": True})["loads"]
    bad = report["run"]["exit_code"] or report["run"].get("findings") or lost
    return 128 + report["run"]["ended_by"] if report["run"]["ended_by"] else int(bool(bad)), report


def catalogue() -> str:
    """All pages with their changes and settings, as text."""
    lines = []
    for kind in PAGES:
        source = page_text(kind)
        lines.append(f"{kind} ({len(source.splitlines())} lines)")
        lines += [f"    --change {name}: {change['what']}" for name, change in changes_of(kind).items()]
        for name, setting in settings_of(source).items():
            default = "required" if setting["default"] is None else setting["default"]
            lines.append(f"    --{name} ({default})  {setting['what']}".rstrip())
    return "\n".join(lines)


class ListPages(argparse.Action):
    """--list: print the catalogue and stop."""

    def __call__(self, parser, namespace, values, option_string=None):
        tell(catalogue())
        parser.exit()


def trainer_parser() -> argparse.ArgumentParser:
    """The command line's own flags; those of the page are parsed by `page_parser`."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage="%(prog)s KIND FILE [-h] [--list] [--change NAME ...] [--advantage F] [--loss F] [--leave_out NAME ...] "
        "[--inline] [--force] [settings of the page]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("kind", choices=PAGES, metavar="KIND", help=", ".join(PAGES))
    parser.add_argument("file", metavar="FILE", help="script to write, NAME.py")
    parser.add_argument("--list", action=ListPages, nargs=0, help="print the changes and settings of all pages")
    parser.add_argument("--change", nargs="+", action="extend", default=[], metavar="NAME", help="a change of --list")
    inline = "copy the file of the reward or environment into FILE, as its default"
    parser.add_argument("--inline", action="store_true", help=inline)
    left_out = "checks of selfcheck that are not for your method"
    parser.add_argument("--leave_out", "--leave-out", nargs="+", default=[], metavar="NAME", help=left_out)
    for flag, (_, takes) in OWN.items():
        what = f"a function of your own that takes of {', '.join(takes)} what it names"
        parser.add_argument(f"--{flag}", default="", metavar="FILE.py:function", help=what)
    parser.add_argument("--force", action="store_true", help="write over FILE")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    args, rest = trainer_parser().parse_known_args(argv)
    try:
        code, report = new_trainer(args, rest)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"error: got {error}; expected a folder to write to", file=sys.stderr)
        return 2
    tell(json.dumps(report, indent=1, ensure_ascii=False))
    return code


if __name__ == "__main__":
    sys.exit(main())
