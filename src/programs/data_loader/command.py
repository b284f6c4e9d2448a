"""The command line, and what --inspect shows."""

import argparse
import contextlib
import itertools
import json
import math
import random
import re
import sys
from collections import Counter
from pathlib import Path

from parts.data.held_out import asked_words, drawn_tasks, of_swapped
from parts.data.question_parts import head_of, odd_answers, warn_unread
from parts.foundation.messages import Help, UserError, need, say, tell
from parts.foundation.settings import parse_flags
from parts.networks.tokenizers import read_tokenizer
from programs.data_loader.bad_rows import KINDS, TARGETS, Names, shown
from programs.data_loader.batches import prompt_ids
from programs.data_loader.row_reader import GOLD_FIELDS, RowReader, Settings, digest
from programs.data_loader.writing import check_out, fill_file, new_file, split_size

FOR_OTHER_SCRIPTS = (warn_unread,)  # trainers and evaluations call it, where this file is beside them
FEW_PROMPTS = 20
SPLIT_COLUMNS = {"split", "set", "subset", "partition", "fold"}
SPLITS = {"train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval"}
SEVERAL = {"action": "extend", "nargs": "+", "default": []}
FLAGS = {  # name: (help, what argparse gets)
    "kind": (f"auto, {', '.join(KINDS)}", {"default": "auto", "metavar": "KIND"}),
    "out": ("file to write, .jsonl or .parquet", {"type": Path, "metavar": "FILE"}),
    "for": ("trainer that will read the output", {"dest": "target", "choices": TARGETS, "default": "ours"}),
    "data_source": ("verl's data_source of all rows (default: each row's source)", {"metavar": "NAME"}),
    "inspect": ("report fields, lengths, duplicates, overlap of sources, examples", {"action": "store_true"}),
    "tokenizer": ("folder or hub id, for lengths in tokens", {"metavar": "DIR"}),
    "validate": ("only report bad rows and columns left out of prompts; exit 1 for any", {"action": "store_true"}),
    "limit": ("stop after N good rows", {"type": int, "metavar": "N"}),
    "split": ("hold out 0.1 of the rows, or 200, in OUT.eval.jsonl; NAME=0.1: OUT.NAME.jsonl", {"metavar": "[NAME=]N"}),
    "seed": ("seed of --split (default: that of --shuffle, else 0)", {"type": int, "metavar": "SEED"}),
    "dedup": (
        "leave out rows that repeat an earlier row's prompt, answer, tests and completions",
        {"action": "store_true"},
    ),
    "system_prompt": ("file with a system prompt for prompts that have none", {"type": Path, "metavar": "FILE"}),
    "shuffle": ("shuffle the output by this seed", {"type": int, "metavar": "SEED"}),
    "map": ("field=column, or field=column.key for a value inside an object", {**SEVERAL, "metavar": "F=C"}),
    "drop": ("columns to leave out, also those that are added (source, id)", {**SEVERAL, "metavar": "COLUMN"}),
    "on_bad": ("skip: bad rows go to OUT.rejected.jsonl", {"choices": ("fail", "skip"), "default": "fail"}),
    "encoding": ("encoding of all inputs, such as cp1252 (default: UTF-8, or UTF-16 with a BOM)", {"metavar": "NAME"}),
    "json": ("print one JSON object on stdout", {"action": "store_true"}),
}


def make_command() -> argparse.ArgumentParser:
    usage = "%(prog)s IN ... [--flag value ...]    (--help has all flags)"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=Help, allow_abbrev=False)
    parser.add_argument("inputs", nargs="+", metavar="IN", help="files, folders, globs, `-`, hub id[:config][@split]")
    for name, (text, options) in FLAGS.items():
        default = options.get("default")
        text += f" (default: {default})" if default else ""
        parser.add_argument(f"--{name}", help=text, **options)
    return parser


def settings_of(args) -> Settings:
    """Check the arguments that are not checked elsewhere, and make the settings of the reading."""
    split = args.split or args.shuffle is not None
    rules = (
        (args.out or args.inspect or args.validate, "nothing to do; expected --out FILE, --inspect or --validate"),
        (not (args.validate and args.out), "--validate with --out; expected one of them, as --validate writes nothing"),
        (args.out or not split, "--split or --shuffle without --out; expected --out"),
        (args.data_source is None or args.target == "verl", "--data_source alone; expected --for verl with it"),
        (args.split or args.seed is None, "--seed without --split; expected both; try --shuffle SEED to shuffle"),
        (not args.tokenizer or args.inspect, "--tokenizer alone; expected --inspect with it"),
        (all("=" in item for item in args.map), f"--map {args.map}; expected field=column; try inputs before it"),
    )
    for holds, got in rules:
        need(holds, f"got {got}")
    if args.out:
        check_out(args.out, args.target)
    system, file = None, args.system_prompt
    if file:
        try:
            system = file.read_text(encoding="utf-8-sig").strip()
        except (OSError, ValueError) as error:
            raise UserError(f"got --system_prompt {file}: {error}; expected a text file") from None
        need(system, f"got --system_prompt {file}, which is empty; expected text")
    given = {name: getattr(args, name) for name in ("kind", "on_bad", "limit", "dedup", "encoding")}
    mapping = dict(item.split("=", 1) for item in args.map)
    return Settings(**given, mapping=mapping, drop=tuple(args.drop), system_prompt=system)


def parts_of(args, rows: list[dict], asked: list[str]) -> list[tuple[Path, str, list[int]]]:
    """(Path, split name, row indices in order) of each output; `asked` has the words of each row's prompt."""
    order = list(range(len(rows)))
    if args.shuffle is not None:
        random.Random(args.shuffle).shuffle(order)
    if not args.split:
        return [(args.out, "train", order)]
    name, size = split_size(args.split, len(rows))
    drawn = drawn_tasks(asked, size, str(args.seed if args.seed is not None else args.shuffle or 0))
    got = f"got --split of {len(rows)} rows, of which no prompt has as few as {size}"
    need(drawn, f"{got}; expected more, as the rows of a prompt stay together")
    chosen = {row for row, words in enumerate(asked) if words in drawn}
    if len(chosen) != size:
        say(f"note: {len(chosen)} rows are held out instead of {size}, as the rows of a prompt stay together")
    held, rest = [i for i in order if i in chosen], [i for i in order if i not in chosen]
    if swapped := of_swapped([asked[i] for i in held], {asked[i] for i in rest}):
        say(f"warning: {len(held)} rows are held out{swapped}")
    return [(args.out, "train", rest), (args.out.with_suffix(f".{name}{args.out.suffix}"), name, held)]


def write(args, rows: list[dict], files: list[str], rejected: list[dict]) -> list[dict]:
    """Write the rows and return what was written where; no output may replace one of the input `files`."""
    outputs, target, inputs = [], args.target, {Path(file).resolve() for file in files}
    drop = {*args.drop} - {item.split("=")[0] for item in args.map}  # --map may refill a dropped column
    asked = [asked_words(row["prompt"]) for row in rows] if args.split else []
    with contextlib.ExitStack() as stack:
        for path, split, order in parts_of(args, rows, asked):
            got = f"got --out {args.out}, which would replace the input {path}"
            need(path.resolve() not in inputs, f"{got}; expected another file; try --out part.jsonl")
            kept = [{name: value for name, value in rows[i].items() if name not in drop} for i in order]
            temporary = stack.enter_context(new_file(path))
            lacking = fill_file(kept, temporary, path.suffix, target, split, args.data_source or "")
            output = {"path": str(path), "rows": len(kept), "split": split, "for": target}
            output |= {"without_ground_truth": lacking} if lacking else {}
            outputs.append(output | ({"prompts": len({asked[row] for row in order})} if args.split else {}))
        if args.on_bad == "skip":
            path = args.out.with_suffix(".rejected.jsonl")
            lines = "".join(json.dumps(item) + "\n" for item in rejected)
            stack.enter_context(new_file(path)).write_text(lines, encoding="utf-8")
            outputs.append({"path": str(path), "rows": len(rejected), "split": "rejected"})
    return outputs


def statistics_of(rows: list[dict], files: list[str], tokenizer) -> dict:
    """What --inspect shows of good rows; `files`: the input of each row."""
    fields, lengths, golds, places, several = {}, {}, {}, {}, len({*files}) > 1
    for row, file in zip(rows, files, strict=True):
        for name, value in row.items():
            fields.setdefault(name, []).append(type(value).__name__)
        sizes = {"prompt_chars": sum(len(message["content"]) for message in row["prompt"])}
        if tokenizer:
            sizes["prompt_tokens"] = len(prompt_ids(tokenizer, row))
        for reply in (row[name] for name in ("completion", "chosen") if name in row):
            sizes["completion_chars"] = len(reply) if isinstance(reply, str) else sum(len(m["content"]) for m in reply)
        for name, size in sizes.items():
            lengths.setdefault(name, []).append(size)
        prompt = digest(row["prompt"])
        golds.setdefault(prompt, set()).add(digest([row.get(name) for name in GOLD_FIELDS]))
        places.setdefault(prompt, set()).add(file if several else row["source"])
    pairs = (" & ".join(pair) for held in places.values() for pair in itertools.combinations(sorted(held), 2))
    return {
        "rows": len(rows),
        "sources": dict(Counter(row["source"] for row in rows)),
        "fields": {name: {"rows": len(types), "types": sorted({*types})} for name, types in fields.items()},
        "lengths": {  # by nearest rank
            name: {
                "p50": sizes[(len(sizes) - 1) // 2],
                "p95": sizes[math.ceil(0.95 * len(sizes)) - 1],
                "max": sizes[-1],
            }
            for name, sizes in ((name, sorted(sizes)) for name, sizes in lengths.items())
        },
        "duplicates": len(rows) - sum(map(len, golds.values())),
        "prompts_with_other_answers": sum(len(answers) > 1 for answers in golds.values()),
        "overlap": dict(Counter(pairs)),
        "examples": [{name: shown(value) for name, value in row.items()} for row in rows[:3]],
    }


def collapsed(rows: list[dict]) -> str:
    """A warning if prompts are only a few texts while an unused column has many; else ""."""
    prompts = len({digest(row["prompt"]) for row in rows})
    counts = {name: len({row[name] for row in rows if isinstance(row.get(name), str)}) for name in Names.PROMPT}
    name = max(counts, key=counts.get)
    if prompts > FEW_PROMPTS or counts[name] < max(5, 3 * prompts):
        return ""
    got = f"got {prompts} distinct prompts in {len(rows)} rows, and {counts[name]} distinct {name}"
    return f"{got}; expected prompts that differ; try --map prompt={name}, with --drop for a conflicting column"


def of_splits(rows: list[dict], files: list[str]) -> list[str]:
    """Warnings: columns, or the names of files, say that rows are of several splits, such as train and test."""
    counts: dict[str, Counter] = {}
    for row, file in zip(rows, files, strict=True):
        extra = row["extra_info"] if isinstance(row.get("extra_info"), dict) else {}
        named = {name: value for name, value in {**row, **extra}.items() if head_of(name) in SPLIT_COLUMNS}
        named["file name"] = next((word for word in re.findall("[a-z]+", file.lower())[::-1] if word in SPLITS), "")
        for name, value in named.items():
            if str(value).lower() in SPLITS:
                counts.setdefault(name, Counter())[value] += 1
    mixed = {name: ", ".join(f"{n} {split}" for split, n in of.items()) for name, of in counts.items() if len(of) > 1}
    return [f"rows of several splits go into one output, by {name}: {shares}" for name, shares in mixed.items()]


def run_command(args) -> int:
    from tqdm import tqdm

    rows, files = [], []
    reader = RowReader(args.inputs, settings_of(args))
    rejected = reader.rejected
    tokenizer = read_tokenizer(args.tokenizer) if args.tokenizer else None
    for row in tqdm(reader, desc="rows", unit="", delay=1, disable=None, file=sys.stderr):
        rows.append(row)
        files.append(reader.current)
    only_shown = args.on_bad == "skip" and not args.out and reader.counts["read"]
    error = None if only_shown else reader.error()
    outputs = write(args, rows, reader.files, rejected) if args.out and not error else []
    reader.say_notes()
    answered = [row for row in rows if "answer" in row]
    lines = odd_answers("answer", [row["answer"] for row in answered], [row["prompt"] for row in answered])
    pairs = {(digest(row["prompt"]), digest(row.get("answer"))) for row in rows}
    if count := sum(n > 1 for n in Counter(prompt for prompt, _ in pairs).values()):
        lines.append(f"{count} prompts have another answer in another row; each answer is paid in its own row only")
    collapse = collapsed(rows)
    lines += [collapse] if collapse else []
    for line in [*lines, *(of_splits(rows, files) if args.out else [])]:
        say(f"warning: {line}")
    report = {
        "kind": reader.kind,
        "why": reader.why,
        "counts": reader.counts,
        "outputs": outputs,
        "unread": dict(reader.unread),
        "no_answer": reader.no_answer,
        "errors": rejected[:20] or ([{"message": str(error)}] if error else []),
        "stats": statistics_of(rows, files, tokenizer) if args.inspect else {},
    }
    if args.json:
        tell(json.dumps(report))
    else:
        counts = ", ".join(f"{count} {name}" for name, count in reader.counts.items())
        prompts = {o["path"]: f" of {o['prompts']} prompts" if "prompts" in o else "" for o in outputs}
        written = [f"wrote {output['path']}: {output['rows']} rows{prompts[output['path']]}" for output in outputs]
        shown_stats = [json.dumps(report["stats"], indent=2, ensure_ascii=False)] if args.inspect else []
        tell("\n".join([f"{reader.kind}: {reader.why}", counts, *written, *shown_stats]))
    if error:
        say(f"error: {error}")
    if rejected and not args.out:
        return 1
    return error.code if error else int(bool(args.validate and (reader.unread or collapse)))


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(make_command(), argv)
    try:
        return run_command(args)
    except UserError as error:
        message, code = str(error), error.code
    except OSError as error:  # a full disk, a file that vanished
        message, code = f"got {error}; expected readable inputs and a writable output", 2
    if args.json:
        none = {"kind": None, "why": "", "counts": {}, "outputs": [], "stats": {}}
        tell(json.dumps({**none, "errors": [{"message": message}]}))
    say(f"error: {message}")
    return code


if __name__ == "__main__":
    sys.exit(main())
