"""The command line."""

import argparse
import array
import contextlib
import json
import random
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from parts.data.held_out import asked_words
from parts.data.rows import is_hub_id
from parts.foundation.messages import UserError, need, say, tell
from parts.foundation.settings import parse_flags
from parts.networks.models import tokenizer_of
from programs.data_loader.bad_rows import DEFAULT_MAX_BYTES, KINDS, TARGETS, BadRows, shown
from programs.data_loader.held_out import held_out_rows, split_size
from programs.data_loader.inspection import Stats
from programs.data_loader.reading import Settings
from programs.data_loader.row_reader import RowReader, digest
from programs.data_loader.writing import check_out, fill_file, json_line, new_file

SEVERAL = {"action": "extend", "nargs": "+", "default": []}
FLAGS = {  # name: (help, what argparse gets)
    "kind": (f"auto, {', '.join(KINDS)}", {"default": "auto", "metavar": "KIND"}),
    "out": ("file to write, .jsonl or .parquet", {"type": Path, "metavar": "FILE"}),
    "for": ("who reads the output", {"dest": "target", "choices": TARGETS, "default": "ours"}),
    "data_source": ("verl's data_source of all rows (default: each row's source)", {"metavar": "NAME"}),
    "inspect": ("report fields, lengths, duplicates, overlap of sources, examples", {"action": "store_true"}),
    "tokenizer": ("folder or hub id, for lengths in tokens", {"metavar": "DIR"}),
    "plot": (argparse.SUPPRESS, {}),
    "validate": (
        "only report bad rows, and columns that no prompt holds though they look like it; exit 1 for any",
        {"action": "store_true"},
    ),
    "limit": ("stop after N good rows", {"type": int, "metavar": "N"}),
    "split": (
        "held-out rows, whole prompts: 0.1 or 200 go to OUT.eval.jsonl, NAME=0.1 or NAME=200 to OUT.NAME.jsonl",
        {"metavar": "[NAME=]N"},
    ),
    "seed": ("of --split (default: that of --shuffle, else 0)", {"type": int, "metavar": "SEED"}),
    "dedup": ("leave out rows whose prompt, answer, tests and completions came before", {"action": "store_true"}),
    "system_prompt": ("file with a system prompt for prompts that have none", {"type": Path, "metavar": "FILE"}),
    "shuffle": ("shuffle the output by this seed", {"type": int, "metavar": "SEED"}),
    "map": ("field=column, the column perhaps a dotted path", {**SEVERAL, "metavar": "F=C"}),
    "drop": ("columns to leave out, those that are added (source, id) too", {**SEVERAL, "metavar": "COLUMN"}),
    "on_bad": (
        "skip: write the good rows, and the bad ones to OUT.rejected.jsonl",
        {"choices": ("fail", "skip"), "default": "fail"},
    ),
    "txt_sep": (
        r"what stands between prompts of a .txt, such as '\n\n' (default: a line each)",
        {"metavar": "TEXT"},
    ),
    "input_format": (
        "read inputs as jsonl, json, txt, csv, tsv or parquet, whatever their names",
        {"metavar": "NAME"},
    ),
    "encoding": ("of all inputs, such as cp1252 (default: UTF-8, else as the file shows)", {"metavar": "NAME"}),
    "delimiter": (
        "between the columns of CSV and TSV: one character, or tab (default: as the file shows)",
        {"metavar": "C"},
    ),
    "max_bytes": (
        "what one packed file may unpack to",
        {"type": int, "default": DEFAULT_MAX_BYTES, "metavar": "N"},
    ),
    "json": ("print one JSON object on stdout", {"action": "store_true"}),
}


def make_command() -> argparse.ArgumentParser:
    """The command line; flags work with `_` and `-`."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s IN ... [--flag value ...]    (--help has all flags)",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    inputs = "files, folders, globs, `-`, hub id[:config][@split], reasoning_gym:NAME?size=100&seed=0"
    parser.add_argument("inputs", nargs="+", metavar="IN", help=inputs)
    for name, (text, options) in FLAGS.items():
        default = options.get("default")
        text += f" (default: {default})" if default else ""
        parser.add_argument(*dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]), help=text, **options)
    return parser


def settings_of(args) -> Settings:
    """Check the arguments that are not checked elsewhere, and make the settings of the reading."""
    need(args.plot is None, "got --plot, which is gone; try --inspect, which prints the lengths' percentiles")
    rules = (
        (args.out or args.inspect or args.validate, "nothing to do; expected --out FILE, --inspect or --validate"),
        (not (args.validate and args.out), "--validate with --out; expected one of them, as --validate writes nothing"),
        (args.out or (not args.split and args.shuffle is None), "--split or --shuffle without --out; expected --out"),
        (
            args.target == "verl" or args.data_source is None,
            f"--data_source with --for {args.target}; expected --for verl, which has such a column",
        ),
        (args.data_source != "", "--data_source ''; expected a name, such as openai/gsm8k"),
        (
            args.split or args.seed is None,
            "--seed without --split; expected both; try --shuffle SEED for an order",
        ),
        (not args.tokenizer or args.inspect, "--tokenizer alone; expected --inspect with it"),
    )
    for holds, got in rules:
        need(holds, f"got {got}")
    wrong = [item for item in args.map if "=" not in item]
    need(not wrong, f"got --map {wrong[:1]}; expected field=column; try inputs before --map")
    if args.out:
        check_out(args.out, args.target)
    system = None
    if args.system_prompt:
        try:
            system = args.system_prompt.read_text(encoding="utf-8-sig").strip()
        except (OSError, ValueError) as error:
            raise UserError(f"got --system_prompt {args.system_prompt}: {error}; expected a text file") from None
        need(system, f"got --system_prompt {args.system_prompt}, which is empty; expected text")
    separator = args.txt_sep
    if separator is not None:
        separator = re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t"}.get(match[1], "\\"), separator)
    names = ("kind", "on_bad", "limit", "max_bytes", "input_format", "dedup", "encoding", "delimiter")
    return Settings(
        **{name: getattr(args, name) for name in names},
        mapping=dict(item.split("=", 1) for item in args.map),
        drop=tuple(args.drop),
        system_prompt=system,
        text_separator=separator,
    )


def open_tokenizer(name: str):
    """A tokenizer from a folder or the hub."""
    need(Path(name).is_dir() or is_hub_id(name), f"got --tokenizer {name}; expected a folder or a hub id")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(tokenizer_of(name))
    except (OSError, ValueError) as error:
        raise UserError(f"got --tokenizer {name}, which does not load: {shown(str(error))}") from None


class Spool:
    """Rows on disk, in an unnamed file, with their offsets: what is written later takes no memory now."""

    def __init__(self, folder: Path | None):
        self.file, self.offsets = tempfile.TemporaryFile(dir=folder), array.array("q", [0])

    def add(self, line: str) -> None:
        """Append a line."""
        self.offsets.append(self.offsets[-1] + self.file.write(line.encode()))

    def lines(self, order: Iterable[int] | None = None) -> Iterator[bytes]:
        """The lines, all or in this order."""
        self.file.seek(0)
        if order is None:
            yield from self.file
            return
        at = 0
        for index in order:
            start, end = self.offsets[index], self.offsets[index + 1]
            if at != start:
                self.file.seek(start)
            at = end
            yield self.file.read(end - start)

    def __len__(self) -> int:
        return len(self.offsets) - 1


class Run:
    """One call of the command: reads once into spools, then writes all outputs or none."""

    def __init__(self, args, settings: Settings):
        self.args, self.first_rejected = args, []
        folder = args.out.parent if args.out else None
        self.good, self.bad = Spool(folder), Spool(folder)
        self.stats = Stats(open_tokenizer(args.tokenizer) if args.tokenizer else None)
        self.reader = RowReader(args.inputs, settings, self.reject)
        self.prompts: list[bytes] = []  # digests, for a split
        self.outputs: list[dict] = []

    def reject(self, item: dict) -> None:
        """Keep a bad row for the report and the .rejected.jsonl."""
        if len(self.first_rejected) < 20:
            self.first_rejected.append(item)
        if self.args.on_bad == "skip" and self.args.out:
            self.bad.add(json.dumps(item) + "\n")

    def read(self) -> None:
        """Go through all rows once."""
        from tqdm import tqdm

        args = self.args
        drop = {*args.drop} - {*self.reader.settings.mapping}  # --map puts another column in the place of a dropped one
        for row in tqdm(self.reader, desc="rows", unit="", delay=1, disable=None, file=sys.stderr):
            if args.inspect:
                self.stats.add(row, self.reader.current)
            if args.out:
                self.good.add(json_line({name: value for name, value in row.items() if name not in drop}))
            if args.split:
                self.prompts.append(digest(asked_words(row["prompt"])))

    def parts(self) -> list[tuple[Path, str, list[int] | None]]:
        """(path, split name, order of rows) of each output."""
        args, count = self.args, len(self.good)
        order = list(range(count)) if args.split or args.shuffle is not None else None
        if args.shuffle is not None:
            random.Random(args.shuffle).shuffle(order)
        if not args.split:
            return [(args.out, "train", order)]
        name, size = split_size(args.split, count)
        chosen = held_out_rows(self.prompts, size, args.seed if args.seed is not None else args.shuffle or 0)
        if len(chosen) != size:
            say(f"note: {len(chosen)} rows are held out, not {size}, as rows of one prompt stay together")
        held, rest = [i for i in order if i in chosen], [i for i in order if i not in chosen]
        return [(args.out, "train", rest), (args.out.with_suffix(f".{name}{args.out.suffix}"), name, held)]

    def write(self) -> None:
        """Write every output beside its place, then put all in place."""
        args = self.args
        with contextlib.ExitStack() as stack:
            for path, split, order in self.parts():
                temporary = stack.enter_context(new_file(path))
                count, lacking = self.write_part(temporary, path, split, order)
                output = {"path": str(path), "rows": count, "split": split, "for": args.target}
                if lacking:
                    output["without_ground_truth"] = lacking
                if args.split:
                    output["prompts"] = len({self.prompts[row] for row in order})
                self.outputs.append(output)
            if args.on_bad == "skip":
                path = args.out.with_suffix(".rejected.jsonl")
                with open(stack.enter_context(new_file(path)), "wb") as f:
                    f.writelines(self.bad.lines())
                self.outputs.append({"path": str(path), "rows": len(self.bad), "split": "rejected"})

    def write_part(self, temporary: Path, path: Path, split: str, order: list[int] | None) -> tuple:
        """Write one output; lines of our own schema are copied as they are. Returns what fill_file does."""
        if self.args.target == "ours" and path.suffix == ".jsonl":
            with open(temporary, "wb") as f:
                f.writelines(self.good.lines(order))
            return len(self.good) if order is None else len(order), 0
        shape = (self.args.target, split, self.args.data_source or "")
        return fill_file(lambda: map(json.loads, self.good.lines(order)), temporary, path.suffix, shape)

    def report(self) -> dict:
        """The report that --json prints."""
        return {
            "kind": self.reader.kind,
            "why": self.reader.why,
            "counts": self.reader.counts,
            "outputs": self.outputs,
            "unread": dict(self.reader.unread),
            "no_answer": {name: count for (name, _), count in self.reader.untaken.items()},
            "errors": self.first_rejected,
            "stats": self.stats.report() if self.args.inspect else {},
        }


def run_command(args) -> int:
    """Do what the arguments ask for; returns the exit code."""
    run = Run(args, settings_of(args))
    run.read()
    counts, rejected = run.reader.counts, run.reader.counts["rejected"]
    only_look = not args.out
    failed = bool(rejected) and args.on_bad == "fail"
    error = BadRows(run.first_rejected, rejected) if failed else None
    if not failed and not (only_look and counts["read"]):
        try:
            run.reader.need_rows()
        except UserError as nothing:
            error = nothing
    if args.out and not error:
        run.write()
    run.reader.say_notes()
    if collapse := run.reader.collapse():
        say(f"warning: {collapse}")
    if args.json:
        report = run.report()
        report["errors"] = report["errors"] or ([{"message": str(error)}] if error else [])
        tell(json.dumps(report))
    else:
        print_summary(run)
    if error:
        say(f"error: {error}")
        return 1 if only_look and failed else error.code
    return int(
        (bool(rejected) and only_look) or (bool(run.reader.unread or run.reader.untaken or collapse) and args.validate)
    )


def print_summary(run: Run) -> None:
    """The report for people."""
    report = run.report()
    tell(f"{report['kind']}: {report['why']}")
    tell(", ".join(f"{count} {name}" for name, count in report["counts"].items()))
    for output in report["outputs"]:
        prompts = f" of {output['prompts']} prompts" if "prompts" in output else ""
        tell(f"wrote {output['path']}: {output['rows']} rows{prompts}")
    stats = report["stats"]
    for name, item in stats.get("fields", {}).items():
        lost = ", looks like a part of the question and is in no prompt" if name in report["unread"] else ""
        tell(f"  {name}: in {item['rows']} rows, {' or '.join(item['types'])}{lost}")
    for name, lengths in stats.get("lengths", {}).items():
        tell(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in lengths.items()))
    if stats:
        tell(f"  duplicates: {stats['duplicates']}; prompts with other answers: {stats['prompts_with_other_answers']}")
        tell(f"  overlap: {', '.join(f'{pair}: {count}' for pair, count in stats['overlap'].items()) or 'none'}")
        for number, example in enumerate(stats["examples"], start=1):
            tell(f"  example {number}: " + "; ".join(f"{name}={value}" for name, value in example.items()))


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = make_command()
    args = parse_flags(parser, argv)
    try:
        return run_command(args)
    except UserError as error:
        message, code = str(error), error.code
    except OSError as error:  # a full disk, a file that vanished
        message, code = f"got {error}; expected files that can be read and written", 2
    if args.json:
        none = {"kind": None, "why": "", "counts": {}, "outputs": [], "stats": {}}
        tell(json.dumps({**none, "errors": [{"message": message}]}))
    say(f"error: {message}")
    return code


if __name__ == "__main__":
    sys.exit(main())
