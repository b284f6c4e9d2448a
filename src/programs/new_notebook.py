#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6", "transformers>=5.23,<6", "numpy>=1.26", "tqdm", "matplotlib", "nbformat", "nbclient", "ipykernel",
# ]
# ///
"""Write a copy of assets/notebook_template.ipynb with your idea, rewards, model and data filled in, and run it.

The notebook compares an idea with GRPO over several seeds and says whether the difference exceeds the noise. An idea is
a reward beside the others, an advantage, a loss, or a setting of ppo_train.py; the text of its file becomes a cell.
Paths of other files are relative to the notebook's folder, where Jupyter runs it. --run writes the executed copy, with
figures and samples, beside the notebook, which stays without outputs; the result goes to stdout as JSON. The embedded
task's rewards also pay for answer tags; for right answers alone use `--reward numeric_correctness`.

Deliberately left out: flags for further settings; one cell of the notebook holds them.

    python scripts/new_notebook.py --output idea.ipynb                         # the embedded task, CPU
    python scripts/new_notebook.py --idea reward=my_idea.py:short_and_right --run --output idea.ipynb
    python scripts/new_notebook.py --idea advantage=my_idea.py:median --idea clip_eps_high=0.28 --output idea.ipynb
    python scripts/new_notebook.py --model Qwen/Qwen2.5-0.5B-Instruct --precision bf16 --data train.jsonl \\
        --eval_data test.jsonl --reward my_rewards.py:correct --output idea.ipynb                          # GPU

Exit codes: 0 written, and run; 1 a cell of it raised an error; 2 bad input.
"""

import argparse
import ast
import json
import os
import re
import symtable
import sys
import time
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import Help, UserError, need, say, suggest, tell
from parts.foundation.settings import parse_flags
from parts.rewards.reward_forms import full_spec, load_rewards

TEMPLATE = BUNDLE / "assets" / "notebook_template.ipynb"
TEXTS = ("reward", "advantage", "loss", "advantage_std", "aggregation", "kl_estimator")  # settings that are no numbers
IDEA_HELP = "reward=, advantage= or loss=FILE.py:function, or a setting, clip_eps_high=0.28; repeatable"


class CellError(UserError):
    """A cell of the notebook raised an error."""

    code = 1


def names_in(text: str, imported: bool = False) -> set[str]:
    """The names that Python source binds at its top, with those that it imports or without; it is not run."""
    symbols = symtable.symtable(text, "idea", "exec").get_symbols()
    return {x.get_name() for x in symbols if x.is_assigned() or (imported and x.is_imported())}


def check_function(flag: str, target: str) -> str:
    """Raise UserError unless FILE.py:name names a file that binds the name; returns the file."""
    file, colon, name = target.rpartition(":")
    need(colon and Path(file).is_file(), f"got {flag}: no file {file!r}; expected FILE.py:function")
    try:
        known = sorted(names_in(Path(file).read_text(encoding="utf-8-sig")))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"got {flag} ({error}); expected Python") from None
    need(name in known, f"got {flag}: {file} has no {name!r}; expected one of its names{suggest(name, known)}")
    return file


def seen_from(path: str, folder: Path) -> str:
    """A path as seen from the notebook's folder; one that does not exist, such as a hub id, as it is."""
    return os.path.relpath(path, folder) if os.path.exists(path) else path


def set_values(notebook: dict, values: dict) -> None:
    """Replace the value in the line `NAME = value  # comment` of each name, in place; ValueError without that line."""
    for name, value in values.items():
        pattern, cells = re.compile(rf"^{name} = .*?(?=  # |$)", re.MULTILINE), code_cells(notebook)
        (cell,) = [cell for cell in cells if pattern.search("".join(cell["source"]))]
        source = pattern.sub(lambda _, line=f"{name} = {value!r}": line, "".join(cell["source"]))
        cell["source"] = source.splitlines(keepends=True)


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def cell_of(notebook: dict, name: str) -> dict:
    return next(cell for cell in notebook["cells"] if cell["id"] == name)


def text_for_cell(file: str, flag: str, taken: set[str]) -> str:
    """The text of an idea's file without what runs only as a program; UserError for a name that the notebook has."""
    text = Path(file).read_text(encoding="utf-8-sig")
    tree, lines = ast.parse(text), text.splitlines()
    double = sorted(taken & names_in(text))
    need(not double, f"got {flag}: {file} names {', '.join(double)}, as the notebook does; expected other names")
    for node in tree.body:
        is_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        if is_main or getattr(node, "module", "") == "__future__":
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines).strip()


def setting_of(name: str, value: str, notebook: dict):
    """The value of a setting that the notebook's loop reads."""
    loop = ast.parse("".join(cell_of(notebook, "loop")["source"])).body
    (table,) = [node for node in loop if isinstance(node, ast.Assign) and node.targets[0].id == "ACTS_ON"]
    known = sorted(node.value for node in ast.walk(table) if isinstance(node, ast.Constant))
    flag = f"--idea {name}={value}"
    need(name in known, f"got {flag}; expected one of {', '.join(known)}{suggest(name, known)}")
    if name in TEXTS:
        return value
    try:
        return float(value) if re.search(r"[.e]", value) else int(value)
    except ValueError:
        raise UserError(f"got {flag}; expected a number, such as 0.28 for 28%; try --help") from None


def set_idea(notebook: dict, ideas: list[str]) -> None:
    """Put ideas KIND=FILE.py:function and SETTING=value into the notebook's idea cell, in place."""
    others = ["".join(cell["source"]) for cell in code_cells(notebook) if cell["id"] != "idea"]
    taken, texts, rewards, chosen = names_in("\n".join(others), imported=True), {}, ["*REWARDS"], {}
    for idea in ideas:
        (kind, equals, value), flag = idea.partition("="), f"--idea {idea}"
        need(equals and value, f"got {flag}; expected reward=, advantage= or loss=FILE.py:function, or SETTING=value")
        need(kind not in chosen or kind == "reward", f"got two --idea {kind}=; expected one")
        if kind != "reward" and (kind not in ("advantage", "loss") or ":" not in value):
            chosen[kind] = repr(setting_of(kind, value, notebook))
            continue
        file, name = check_function(flag, value), value.rpartition(":")[2]
        if file not in texts:
            texts[file] = text_for_cell(file, flag, taken)
            taken |= names_in(texts[file])
        if kind == "reward":
            rewards.append(name)
        chosen[kind] = f"[{', '.join(rewards)}]" if kind == "reward" else name
    shown = ", ".join(f'"{key}": {value}' for key, value in chosen.items())
    source = "\n\n\n".join([*texts.values(), f"BASELINE = {{}}\nIDEA = {{{shown}}}"])
    cell_of(notebook, "idea")["source"] = source.splitlines(keepends=True)


def new_notebook(args) -> dict:
    folder = Path(args.output).resolve().parent
    need(TEMPLATE.is_file(), f"got no {TEMPLATE}; expected the bundle around this script; try the one in its scripts/")
    need(Path(args.output).suffix == ".ipynb", f"got --output {args.output}; expected a name ending in .ipynb")
    need(folder.is_dir(), f"got --output {args.output}; expected a folder that exists; try mkdir -p {folder}")
    fresh = args.force or not os.path.exists(args.output)
    need(fresh, f"got --output {args.output}, which exists; expected a new name; try --force")
    for name, exists in {"model": os.path.isdir, "data": os.path.isfile, "eval_data": os.path.isfile}.items():
        path, kind = getattr(args, name), "folder" if name == "model" else "file"
        # no hub id of data has a suffix
        is_path = path.startswith((".", "/", "~")) or (kind == "file" and Path(path).suffix)
        need(exists(path) or not is_path, f"got --{name} {path}, which does not exist; expected a {kind} or a hub id")
    args.reward = [*map(full_spec, args.reward)]
    for spec in args.reward:
        load_rewards(spec)
    need(args.steps is None or args.steps > 0, f"got --steps {args.steps}; expected 1 or more")
    seeds = args.seeds or []  # one that counts twice would make the noise look smaller
    need(len({*seeds}) == len(seeds) and min(seeds, default=0) >= 0, f"got --seeds {seeds}; expected different ones")
    need(args.reward or not args.data, "got --data without --reward; expected a reward for it; try FILE.py:function")
    near = os.path.relpath(BUNDLE, folder)  # papermill runs a notebook in the folder that it is called from
    values = {"BUNDLE": str(BUNDLE) if near.startswith("..") else near}
    paths = {name: seen_from(getattr(args, name), folder) for name in ("model", "data", "eval_data")}
    rewards = [f"{seen_from(file, folder)}:{name}" for file, _, name in (x.rpartition(":") for x in args.reward)]
    others = {name: getattr(args, name) for name in ("precision", "prompt_column", "chat", "seeds", "steps")}
    values |= {name.upper(): value for name, value in (paths | others | {"rewards": rewards}).items() if value}
    notebook = json.loads(TEMPLATE.read_text(encoding="utf-8"))
    set_values(notebook, values)
    if args.idea:
        set_idea(notebook, args.idea)
    return notebook


def printed(notebook, name: str) -> list[str]:
    outputs = cell_of(notebook, name)["outputs"]
    return "".join(out["text"] for out in outputs if out.get("name") == "stdout").splitlines()


def run_notebook(path: Path) -> dict:
    """Run a notebook in its folder; what it found. NAME.run.ipynb gets its outputs, those before an error too.

    Raises:
        CellError: a cell raised an error.
        UserError: the packages to run it are not installed.
    """
    try:
        import nbformat
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError
    except ImportError as error:
        raise UserError(f"got --run, but {error}; expected nbclient and ipykernel; try requirements.txt") from None
    notebook, ran = nbformat.read(path, as_version=4), path.with_suffix(".run.ipynb")
    where = {"metadata": {"path": str(path.resolve().parent)}}
    say(f"running {path}: one to two minutes on a CPU with the embedded model and three seeds")
    begin = time.perf_counter()
    try:
        NotebookClient(notebook, timeout=None, kernel_name="python3", resources=where).execute()
    except CellExecutionError as error:
        raise CellError(f"a cell raised {error.ename}: {error.evalue}; all outputs are in {ran}") from None
    finally:
        nbformat.write(notebook, ran)
    outcome = {"ran": str(ran), "seconds": round(time.perf_counter() - begin), "runs": printed(notebook, "run")}
    return outcome | {"verdict": printed(notebook, "verdict"), "next": printed(notebook, "next")}


def notebook_parser() -> argparse.ArgumentParser:
    """The command line's flags, spelled with `_` or `-`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help, allow_abbrev=False)
    add, repeated = parser.add_argument, {"action": "append", "default": []}
    add("--output", required=True, metavar="FILE", help="notebook to write, NAME.ipynb")
    add("--reward", **repeated, metavar="SPEC", help="FILE.py:function[*weight], repeatable")
    add("--model", default="", help="folder or hub id (default: the embedded one)")
    add("--data", default="", help="prompts: JSONL, JSON, CSV or parquet file, or hub id (default: embedded)")
    add("--prompt_column", default="", metavar="NAME", help="column with the prompt (default: prompt)")
    add("--chat", action="store_true", help="string prompts become a user's turn of the chat template")
    add("--eval_data", default="", metavar="DATA", help="held-out prompts (default: a tenth of --data, as --hold_out)")
    add("--precision", choices=["auto", "fp32", "bf16"], default="auto", help="auto: bf16 if the GPU supports it")
    add("--idea", **repeated, metavar="KIND=VALUE", help=IDEA_HELP)
    add("--seeds", type=int, nargs="+", metavar="N", help="seeds; both arms run once with each")
    add("--steps", type=int, help="steps of each run (default: the template's)")
    add("--run", action="store_true", help="run it, and write it with outputs to NAME.run.ipynb")
    add("--force", action="store_true", help="write over an existing file")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = parse_flags(notebook_parser(), argv)
    try:
        notebook = new_notebook(args)
        Path(args.output).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        outcome = {"wrote": args.output} | (run_notebook(Path(args.output)) if args.run else {})
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"error: got {error}; expected a folder to write to", file=sys.stderr)
        return 2
    tell(json.dumps(outcome if args.run else outcome | {"run": f"jupyter execute {args.output}"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
