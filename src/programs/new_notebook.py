#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Write a copy of assets/notebook_template.ipynb with your rewards, model and data filled in.

The notebook compares an idea, which you write in one of its cells, with GRPO over several seeds. Files are written into
it relative to its own folder, where Jupyter runs it.

Deliberately left out: running it (`jupyter execute FILE`, or any editor), and further settings, which stand in one cell
of the notebook.

    python scripts/new_notebook.py --output idea.ipynb                         # the embedded task, CPU
    python scripts/new_notebook.py --reward my_rewards.py:correct --data train.jsonl --output idea.ipynb
    python scripts/new_notebook.py --model Qwen/Qwen2.5-0.5B-Instruct --precision bf16 --data train.jsonl \\
        --eval_data test.jsonl --reward my_rewards.py:correct --output idea.ipynb                          # GPU

Exit codes: 0 written, 2 bad input.
"""

import argparse
import ast
import json
import os
import re
import sys
from pathlib import Path

from parts.bundle import BUNDLE
from parts.messages import UserError, need, suggest, tell

TEMPLATE = BUNDLE / "assets" / "notebook_template.ipynb"


def check_reward(spec: str) -> None:
    """Raise UserError unless FILE.py:name[*weight] names a file that binds the name; it is read, not run."""
    target, _, weight = spec.partition("*")
    file, colon, name = target.rpartition(":")
    need(colon and Path(file).is_file(), f"got --reward {spec!r}: no file {file!r}; expected FILE.py:function[*weight]")
    try:
        if not weight.isidentifier():  # else the file's list of weights
            float(weight or 1)
        body = ast.parse(Path(file).read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError) as error:
        raise UserError(f"got --reward {spec!r} ({error}); expected Python and a weight that is a number") from None
    defined = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    bound = [node.id for top in body for node in ast.walk(top) if isinstance(node, ast.Name)]
    bound = [name for name in bound if re.search(rf"^{name}\s*(:.*)?=", Path(file).read_text(encoding="utf-8"), re.M)]
    known = [n for n in dict.fromkeys(defined + bound) if not n.startswith("_")]
    for word in (name, *([weight] if weight.isidentifier() else [])):
        what = f"{file} has no {word!r}; expected one of its names{suggest(word, known)}"
        need(word in known, f"got --reward {spec!r}: {what}")


def seen_from(path: str, folder: Path) -> str:
    """A path as seen from the notebook's folder; one that does not exist, such as a hub id, as it is."""
    return os.path.relpath(path, folder) if os.path.exists(path) else path


def reward_seen_from(spec: str, folder: Path) -> str:
    """FILE.py:name*weight as seen from the notebook's folder."""
    file, _, rest = spec.rpartition(":")
    return f"{seen_from(file, folder)}:{rest}"


def set_values(notebook: dict, values: dict) -> None:
    """Replace the value in the line `NAME = value  # comment` of each name, in place.

    Raises:
        KeyError: if a name does not stand in exactly one line, as then the template is not the one that this fits.
    """
    for name, value in values.items():
        pattern, count = re.compile(rf"^{name} = .*?(?=  # |$)", re.MULTILINE), 0
        for cell in notebook["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and pattern.search(source):
                source = pattern.sub(lambda _, line=f"{name} = {value!r}": line, source)
                cell["source"] = source.splitlines(keepends=True)
                count += len(pattern.findall(source))
        if count != 1:
            raise KeyError(f"{name} stands in {count} lines")


def new_notebook(args) -> dict:
    """The filled-in notebook of a command line."""
    folder = Path(args.output).resolve().parent
    need(TEMPLATE.is_file(), f"got no {TEMPLATE}; expected the bundle around this script; try the one in its scripts/")
    need(Path(args.output).suffix == ".ipynb", f"got --output {args.output}; expected a name in .ipynb")
    need(folder.is_dir(), f"got --output {args.output}; expected a folder that exists; try mkdir -p {folder}")
    fresh = args.force or not os.path.exists(args.output)
    need(fresh, f"got --output {args.output}, which exists; expected a new name; try --force")
    for name in ("data", "eval_data"):
        path = getattr(args, name)
        found = not path or os.path.isfile(path) or (not path.startswith((".", "/", "~")) and not Path(path).suffix)
        need(found, f"got --{name} {path}, which is not a file; expected one, or a hub id")
    for spec in args.reward:
        check_reward(spec)
    need(args.reward or not args.data, "got --data without --reward; expected a reward for it; try FILE.py:function")
    values = {"BUNDLE": seen_from(str(BUNDLE), folder)}
    for name in ("model", "data", "eval_data", "precision"):
        if getattr(args, name):
            values[name.upper()] = seen_from(getattr(args, name), folder)
    if args.reward:
        values["REWARDS"] = [reward_seen_from(spec, folder) for spec in args.reward]
    notebook = json.loads(TEMPLATE.read_text(encoding="utf-8"))
    set_values(notebook, values)
    return notebook


def notebook_parser() -> argparse.ArgumentParser:
    """The command line's flags, spelled with `_` or `-`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    own = "(default: the embedded one)"
    parser.add_argument("--output", required=True, metavar="FILE", help="notebook to write, NAME.ipynb")
    parser.add_argument(
        "--reward", action="append", default=[], metavar="SPEC", help="FILE.py:function[*weight], repeatable"
    )
    parser.add_argument("--model", default="", help=f"folder or hub id {own}")
    parser.add_argument("--data", default="", help=f"prompts: JSONL, JSON, CSV or parquet file, or hub id {own}")
    held_out = "held-out prompts (default: the embedded ones, or the last tenth of --data)"
    parser.add_argument("--eval_data", "--eval-data", default="", metavar="DATA", help=held_out)
    precisions = {"choices": ["auto", "fp32", "bf16"], "default": "auto"}
    parser.add_argument("--precision", **precisions, help="auto: bf16 where the CUDA GPU can (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="write over an existing file")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    args = notebook_parser().parse_args(argv)
    try:
        notebook = new_notebook(args)
        Path(args.output).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"error: got {error}; expected a folder to write to", file=sys.stderr)
        return 2
    tell(json.dumps({"wrote": args.output, "run": f"jupyter execute {args.output}"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
