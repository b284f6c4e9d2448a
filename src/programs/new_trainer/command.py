"""The command line."""

import argparse
import json
import shlex
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

from parts.data.held_out import hold_out, mark_trained
from parts.data.prompts import warn_unread
from parts.foundation.dialect import check_units, in_own_words
from parts.foundation.messages import Help, UserError, need, say, tell
from parts.foundation.processes import wait_passively
from parts.foundation.settings import parse_flags
from parts.learning.idle_settings import idle_settings
from parts.rewards.reward_forms import full_spec
from parts.running.output_folder import write_text
from programs.new_trainer.pages import (
    OF_A_CHECK,
    OF_A_RUN,
    OWN,
    PAGES,
    as_flags,
    as_own,
    changes_of,
    check_settings,
    outline,
    page_parser,
    page_text,
    settings_of,
    settings_of_changes,
    with_change,
    with_default,
    with_file,
    with_own,
)
from programs.new_trainer.training import STOPS, check_functions, checked, page_rows, time_left, trained

HINTS = {"reward": "FILE.py:function", "environment": "FILE.py:Class", "data": "FILE.jsonl", "teacher": "FOLDER"}
OWN_CHECKS = {"advantage": "group_advantages", "loss": "policy_clip"}  # of the page's own ones, not of the user's
NO_ACCURACY = "no accuracy before and after is measured; try --hold_out N, or --eval_data FILE.jsonl with other prompts"
CLIPS = ("clip_eps_low", "clip_eps_high", "dual_clip")
REPLACED = {"monte_carlo": ("gae_lambda",), "cispo": CLIPS, "loss": CLIPS}  # what a change, or an own loss, leaves idle
OF_LORA = "change lora: the default lr is for all weights; try ten times that: --lr 1e-5 for 50M parameters or more"


def page_notes(source: str, settings: dict, changes: list[str]) -> list[str]:
    """What of the given settings and changes does nothing in the page, and what would make it act."""
    page = {name: setting["default"] for name, setting in settings_of(source).items()}
    updates = int(page.get("epochs") or 1) * int(page.get("minibatches") or 1)
    once = "without effect, as a batch has one optimizer step, whose ratio is 1; try --minibatches 4"
    replacing = [name for name in REPLACED if name in changes and (name != "loss" or "config=config" not in source)]
    idle = [(name, change) for change in replacing for name in REPLACED[change] if name in settings]
    notes = [f"{name} {settings[name]}: without effect beside {change}; try without it" for name, change in idle]
    notes += [OF_LORA] if "lora" in changes and "lr" not in settings else []
    if "loss" in changes:  # what it does with the ratio is not known
        return notes
    config = SimpleNamespace(given={*settings}, **{"data": "", "eval_data": ""} | settings)
    steps = [f"change {name}: {once}" for name in ("gspo", "cispo") if name in changes and updates == 1]
    return [*notes, *idle_settings(config, updates), *steps]


def check_file(file: str, force: bool) -> None:
    """Raise UserError for a FILE that cannot be written, or that is there."""
    need(file.endswith(".py"), f"got FILE {file}; expected a name ending in .py")
    folder = Path(file).resolve().parent
    need(folder.is_dir(), f"got FILE {file}; expected a folder that exists; try mkdir -p {folder}")
    need(force or not Path(file).exists(), f"got FILE {file}, which exists; expected a new name; try --force")


def check_out(given: dict, out: Path) -> None:
    """Raise UserError where the output folder is not an earlier run's."""
    free = "out" not in given or not out.exists() or (out / "settings.json").is_file()
    need(free, f"got --out {out}, which exists and is not an earlier run; expected a new folder")


def rows_text(rows: list[dict]) -> str:
    """JSONL that a page reads; dates and decimals become text."""
    return "".join(json.dumps(row["columns"], ensure_ascii=False, default=str) + "\n" for row in rows)


def read_data(args, given: dict, started: bool) -> tuple[dict[str, list[dict]], dict[str, Path]]:
    """(rows, JSONL file to write) by setting; held-out rows know whether they train.

    The files lie beside OUT, which a later run moves. They hold rows that are split here, or that no page reads.
    """
    column = given.get("prompt_column", "prompt")
    names = [name for name in ("data", "eval_data") if started and given.get(name)]
    read = {name: page_rows(name, given[name], column) for name in names}
    rows, moved = {name: x for name, (x, _) in read.items()}, {name for name, (_, as_is) in read.items() if not as_is}
    if args.hold_out is not None:
        ready = "out" in given and rows.get("data")
        need(ready, f"got --hold_out {args.hold_out} without a run; expected --data and --out, as for a run")
        parts = hold_out(SimpleNamespace(**{"eval_data": "", "hold_out": args.hold_out} | given), rows["data"])
        rows = dict(zip(("data", "eval_data"), parts, strict=True))
        moved = {*rows}
    folder = Path(f"{Path(given.get('out') or args.file.removesuffix('.py'))}_data")
    files = {"data": folder / "train.jsonl", "eval_data": folder / "held_out.jsonl"}
    files = {name: file for name, file in files.items() if name in moved}
    for name, file in files.items():
        same = not file.exists() or file.read_text(encoding="utf-8") == rows_text(rows[name])
        need(same, f"got {file}, which has other rows; expected a new folder; try another --out")
        say(f"note: the page reads {file}, {len(rows[name])} rows")
    given |= {name: str(file) for name, file in files.items()}
    if "eval_data" in rows:
        mark_trained(SimpleNamespace(**{"allow_overlap": False} | given), rows["data"], rows["eval_data"])
    return rows, files


def check_missing(source: str, given: dict) -> None:
    """Raise UserError for settings that a run of the page needs and the command line does not give."""
    missing = [x for x, setting in settings_of(source).items() if setting["default"] is None and x not in given]
    named = [x for x in OF_A_RUN if x in given]
    flags, beside = (", ".join(f"--{name}" for name in names) for names in (missing, named))
    remedy = " ".join(f"--{name} {HINTS.get(name, '…')}" for name in missing)
    need(not missing, f"got {beside} without {flags}, which check and run need; try {remedy}, or FILE alone")


def edited_page(args, rest: list[str], theirs: dict[str, str]) -> tuple[str, list[str], list[str]]:
    """The page with the user's functions and changes; the names of the changes; flags in the page's own words."""
    source = page_text(args.kind)
    for flag, spec in theirs.items():
        source = with_own(source, flag, spec)
    settings, made = settings_of(source), settings_of_changes(args.kind)
    rest = in_own_words(rest, [*settings, *made])
    flags = [word.partition("=")[0].removeprefix("--").replace("-", "_") for word in rest if word.startswith("--")]
    brought = [made[flag] for flag in flags if flag in made and flag not in settings]
    changes = list(dict.fromkeys([*args.change, *brought]))
    for name in changes:
        source = with_change(source, args.kind, name)
    return source, changes, rest


def given_settings(kind: str, source: str, words: list[str]) -> dict:
    flags = vars(parse_flags(page_parser(kind, source), words))
    given = {name: value for name, value in flags.items() if value is not None}
    check_settings(source, given)
    return given


def new_trainer(args, rest: list[str], report: dict) -> int:
    """Write, check and train; `report` gets what is known, step by step. Returns the exit code."""
    theirs = {flag: getattr(args, flag) for flag in OWN if getattr(args, flag)}
    source, changes, own_words = edited_page(args, rest, theirs)
    given = given_settings(args.kind, source, own_words)
    counts = {name: int(x["default"]) for name, x in settings_of(source).items() if x["type"] == "int"}
    check_units(counts | given, rest)
    check_file(args.file, args.force)
    is_new = not Path(args.file).exists()
    started = any(name in given for name in OF_A_RUN if not args.inline or name not in ("environment", "reward"))
    if started:
        check_missing(source, given)
    out = Path(given.get("out", ""))
    check_out(given, out)
    rows, files = read_data(args, given, started)
    held_out = rows.get("eval_data", [])
    if given.get("reward"):
        given["reward"] = full_spec(given["reward"])
    if "data" in rows:
        check_functions(given, rows["data"], given.get("prompt_column", "prompt"))
    settings = {**given}
    for name, value in settings.items():
        source = with_default(source, name, value)
    if args.inline:
        setting = next((name for name in ("environment", "reward") if name in given), None)
        need(setting, "got --inline without a reward or environment; expected one; try --reward FILE.py:function")
        source = with_file(source, setting, given.pop(setting))
    notes = page_notes(source, settings, [*changes, *theirs])
    notes += [NO_ACCURACY] if "out" in given and "eval_data" not in given else []
    source = as_own(source, args.kind, args.file, changes)
    for name, file in files.items():
        write_text(file, rows_text(rows[name]))
    Path(args.file).write_text(source, encoding="utf-8")
    report |= {"wrote": args.file, "lines": len(source.splitlines()), "settings": settings, "changes": changes}
    report |= ({"own": theirs} if theirs else {}) | {"functions": outline(source), "notes": notes}
    for note in notes:
        say(f"note: {note}")
    if not started:
        return 0
    unread = {given[n]: dict(warn_unread(given[n], [(r["columns"], r["prompt"]) for r in rows[n]])) for n in rows}
    report |= {"unread": unread} if any(unread.values()) else {}
    left_out = [*args.leave_out, *(check for name, check in OWN_CHECKS.items() if name in theirs)]
    try:
        report["selfcheck"] = checked(args.file, as_flags(given, OF_A_CHECK), left_out)
    except UserError:
        if is_new:  # the same command, its data or reward mended, then needs no --force
            Path(args.file).unlink()
            report["wrote"] = None
        raise
    report["command"] = shlex.join(["python", args.file])
    if report["selfcheck"]["failed"] or "out" not in given:
        return int(bool(report["selfcheck"]["failed"]))
    if held_out:
        report["held_out"] = {"rows": len(held_out), "also_in_training": sum(row["trains"] for row in held_out)}
    report["run"] = run = {}
    flags = as_flags(time_left(given, report["selfcheck"]), ["minutes"])
    trained(args.file, flags, given["model"], out, run)
    if run["ended_by"]:
        return 128 + run["ended_by"]
    return int(failed(run))


def failed(run: dict) -> bool:
    """Whether a run ended badly, has a certain cause, or saved a model that does not load."""
    certain = any(cause["certainty"] == "certain" for cause in run.get("causes", ()))
    return bool(run["exit_code"] or certain or not run.get("saved_model", {"loads": True})["loads"])


def stop(number, frame) -> None:
    """Signal handler; started in the background of a shell, a program would ignore SIGINT."""
    raise KeyboardInterrupt(number)


def catalogue() -> str:
    lines = []
    for kind in PAGES:
        source = page_text(kind)
        lines.append(f"{kind} ({len(source.splitlines())} lines)")
        lines += [f"    --change {name}: {change['what']}" for name, change in changes_of(kind).items()]
        for name, setting in settings_of(source).items():
            default = "required" if setting["default"] is None else setting["default"]
            lines.append(f"    --{name} ({default})  {setting['what']}".rstrip())
    return "\n".join(lines)


def trainer_parser() -> argparse.ArgumentParser:
    """The command line's own flags; those of the page are parsed by `page_parser`."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage="%(prog)s KIND FILE [-h] [--list] [--change NAME ...] [--advantage F] [--loss F] [--leave_out NAME ...] "
        "[--inline] [--hold_out N] [--force] [settings of the page]",
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("kind", choices=PAGES, metavar="KIND", help=", ".join(PAGES))
    parser.add_argument("file", metavar="FILE", help="script to write, NAME.py")
    parser.add_argument("--list", action="store_true", help="print the changes and settings of all pages")
    parser.add_argument("--change", nargs="+", action="extend", default=[], metavar="NAME", help="a change of --list")
    inline = "copy the file of the reward or environment into FILE, as its default"
    parser.add_argument("--inline", action="store_true", help=inline)
    left_out = "checks of selfcheck that do not fit your method"
    parser.add_argument("--leave_out", "--leave-out", nargs="+", default=[], metavar="NAME", help=left_out)
    for flag, (_, takes) in OWN.items():
        help_text = f"your function; its parameters are any of {', '.join(takes)}"
        parser.add_argument(f"--{flag}", default="", metavar="FILE.py:function", help=help_text)
    kept = "rows of --data kept back, in place of --eval_data; writes OUT_data/train.jsonl and OUT_data/held_out.jsonl"
    parser.add_argument("--hold_out", "--hold-out", type=int, metavar="N", help=kept)
    parser.add_argument("--force", action="store_true", help="write over FILE")
    return parser


def main(argv: list[str] | None = None) -> int:
    if "--list" in (sys.argv[1:] if argv is None else argv):
        tell(catalogue())
        return 0
    args, rest = trainer_parser().parse_known_args(argv)
    wait_passively()  # the page and its check inherit it
    report, before = {}, {number: signal.signal(number, stop) for number in STOPS}
    try:
        code = new_trainer(args, rest, report)
    except (UserError, OSError) as error:
        text = str(error) if isinstance(error, UserError) else f"got {error}; expected a folder to write to"
        print(f"error: {text}", file=sys.stderr)
        code = getattr(error, "code", 2)
        if report:  # FILE is written
            report["error"] = text
    except KeyboardInterrupt as error:
        report["ended_by"] = error.args[0]
        code = 128 + report["ended_by"]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if report:
            tell(json.dumps(report, indent=1, ensure_ascii=False))
    return code


if __name__ == "__main__":
    sys.exit(main())
